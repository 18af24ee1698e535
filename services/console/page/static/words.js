// Times, spans, counts and codes in words. Times are UTC, as in the command line.

export const HOUR = 3_600_000;
export const MINUTE = 60_000;

export function span(ms) {
  if (ms < 0) return "-" + span(-ms);
  const seconds = Math.round(ms / 1000);
  if (seconds < 1) return `${Math.round(ms)} ms`;
  if (seconds < 120) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60), rest = minutes % 60;
  if (hours < 48) return rest ? `${hours} h ${String(rest).padStart(2, "0")} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function milliseconds(ms) {
  if (ms >= 120_000) return span(ms);
  return ms < 10 ? `${ms.toFixed(1)} ms` : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}

const two = (number) => String(number).padStart(2, "0");
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

export function clock(ms) {
  const date = new Date(ms);
  return `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}`;
}

export function moment(ms, nowMs) {
  const date = new Date(ms), today = new Date(nowMs);
  if (date.toISOString().slice(0, 10) === today.toISOString().slice(0, 10)) return clock(ms);
  return `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]} ${clock(ms)}`;
}

export function fromNow(ms, nowMs) {
  const away = ms - nowMs;
  if (Math.abs(away) < 1000) return "now";
  return away > 0 ? `in ${span(away)}` : `${span(-away)} ago`;
}

export const count = (number) => Math.round(number).toLocaleString("en-US");
export const percent = (share) => `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

export const REASONS = {
  waiting_for_gpus: "too few GPUs are free",
  fragmented: "GPUs are free, in the wrong shape",
  application_return: "an application needs the GPUs back",
  behind_priority: "behind work of higher value",
  planned_later: "has its place in the plan",
  not_before: "may start only later",
  size_exceeds_pool: "larger than the pool",
  memory_exceeds_gpu: "needs more memory than a GPU has",
  node_degraded: "nodes are not usable",
  no_capacity: "no usable GPU",
  awaiting_forecast: "its forecast is being made",
  quota_exceeded: "its team's quota is used up",
  reserved: "GPUs are reserved",
  beyond_window: "beyond what is planned now",
  dependency: "waits for another job",
  held_by_operator: "held by an operator",
  requeue_backoff: "pauses after a failure",
  cluster_unknown: "its cluster is unknown",
  pool_unknown: "its pool is unknown",
};

export function reasonText(code) {
  return code ? REASONS[code] ?? code.replaceAll("_", " ") : "";
}

export const KINDS = { training: "Training", batch_inference: "Batch inference", quantization: "Quantization", debug: "Debug", application: "Application" };
export const kindText = (kind) => KINDS[kind] ?? (kind ? kind.replaceAll("_", " ") : "unknown");
export const stateText = (state) => (state ?? "").replaceAll("_", " ");

/** "0-3,6" for [0, 1, 2, 3, 6]. */
export function gpuRanges(gpus) {
  const runs = [];
  for (const gpu of [...gpus].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && gpu === last[1] + 1) last[1] = gpu;
    else runs.push([gpu, gpu]);
  }
  return runs.map(([a, b]) => (a === b ? a : `${a}-${b}`)).join(",");
}
