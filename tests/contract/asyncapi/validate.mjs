// Validates AsyncAPI documents with AsyncAPI's own parser: `node validate.mjs PACKAGES_FOLDER DOCUMENT…`.
// Prints a JSON list, one entry per document: { errors, warnings, channels, operations, messages }.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";

const [packages, ...documents] = process.argv.slice(2).map((path) => resolve(path));
const { Parser } = createRequire(`${packages}/package.json`)("@asyncapi/parser");

async function judged(path) {
  const { document, diagnostics } = await new Parser().parse(readFileSync(path, "utf8"), { source: path });
  const found = (severity) =>
    diagnostics.filter((one) => one.severity === severity).map((one) => `${one.path.join(".")}: ${one.message} (${one.code})`);
  return {
    errors: found(0),
    warnings: found(1),
    channels: document ? document.channels().all().map((channel) => channel.address()) : [],
    operations: document ? document.operations().all().map((operation) => operation.id()) : [],
    messages: document ? document.components().messages().all().map((message) => message.name()) : [],
  };
}

const answers = [];
for (const path of documents) answers.push(await judged(path));
console.log(JSON.stringify(answers));
