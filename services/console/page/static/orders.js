// Login and the orders a person may give, in dialogs. Reading needs no login; the token is in a file the command line names.

import { byId, fill, h } from "./dom.js";

export class Orders {
  constructor(app) {
    this.app = app;
    this.mayChange = false;
  }

  async start() {
    byId("login").addEventListener("click", () => (this.mayChange ? this.logout() : this.login()));
    byId("dialog").addEventListener("click", (event) => { if (event.target === byId("dialog")) byId("dialog").close(); });
    try {
      this.allowed((await (await fetch("/api/session")).json()).may_change);
    } catch { /* not connected: the banner says so */ }
  }

  allowed(yes) {
    this.mayChange = yes;
    byId("login").textContent = yes ? "Log out" : "Log in";
    this.app.view?.update?.(new Set(["all"]));
  }

  async post(path, body) {
    const response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json", "X-Gpugrid": "1" }, body: JSON.stringify(body ?? {}) });
    const answer = await response.json().catch(() => ({}));
    if (response.status === 401 && path !== "/api/login") this.allowed(false);
    if (!response.ok) throw new Error(answer.error ?? `The server answers ${response.status}.`);
    return answer;
  }

  toast(text) {
    const toast = byId("toast");
    toast.textContent = text;
    toast.hidden = false;
    clearTimeout(this.toasting);
    this.toasting = setTimeout(() => { toast.hidden = true; }, 5000);
  }

  /** A dialog with fields; `act` gets the form's values and may throw a sentence, which is then shown in the dialog. */
  ask({ title, text, fields = [], button, danger = false, act }) {
    const dialog = byId("dialog"), wrong = h("p.wrong", { role: "alert" }), go = h(`button.main`, { type: "submit" }, button);
    const form = h("form", { method: "dialog", onsubmit: async (event) => {
      event.preventDefault();
      go.disabled = true;
      wrong.textContent = "";
      try {
        await act(Object.fromEntries(new FormData(form)));
        dialog.close();
      } catch (error) {
        wrong.textContent = error.message;
      } finally {
        go.disabled = false;
      }
    } }, h("h1", {}, title), text ? h("p.muted", {}, text) : null, fields, wrong, h("div.buttons", {}, h("button", { type: "button", onclick: () => dialog.close() }, "Leave it"), go));
    if (danger) go.className = "main danger-main";
    fill(dialog, form);
    dialog.setAttribute("aria-label", title);
    dialog.showModal();
    (form.querySelector("input, textarea, select") ?? go).focus();
  }

  login(then) {
    this.ask({
      title: "Log in", text: "Everybody may look. To submit, cancel and drain, enter the page's token: gpugrid page --token shows it.", button: "Log in",
      fields: [h("label", {}, "Token", h("input", { name: "token", type: "password", autocomplete: "current-password", required: true }))],
      act: async ({ token }) => {
        await this.post("/api/login", { token });
        this.allowed(true);
        this.toast("You may submit, cancel and drain now.");
        if (typeof then === "function") setTimeout(then, 0);
      },
    });
  }

  async logout() {
    try { await this.post("/api/logout"); } finally { this.allowed(false); }
  }

  /** Ask for the token first where it is needed. */
  allowedTo(action) {
    if (this.mayChange) action();
    else this.login(action);
  }

  cancel(job) {
    this.allowedTo(() => this.ask({
      title: `Cancel ${job}?`, text: "A running job is asked for a checkpoint first if it can write one, then stopped.", button: "Cancel the job", danger: true,
      fields: [h("label", {}, "Why", h("small", {}, "for the record; may stay empty"), h("input", { name: "cause", maxlength: "200" }))],
      act: async ({ cause }) => { await this.post(`/api/jobs/${encodeURIComponent(job)}/cancel`, { cause }); this.toast(`Cancellation of ${job} is sent.`); },
    }));
  }

  priority(job, row) {
    this.allowedTo(() => this.ask({
      title: `Priority of ${job}`, text: "1 is lowest, 100 highest. Waiting raises it by itself from 30 minutes on.", button: "Change",
      fields: [h("label", {}, "Priority", h("input", { name: "priority", type: "number", min: "1", max: "100", required: true, value: row.prio ?? 5 }))],
      act: async ({ priority }) => { await this.post(`/api/jobs/${encodeURIComponent(job)}/priority`, { priority: Number(priority) }); this.toast(`The new priority of ${job} is sent.`); },
    }));
  }

  drain(name, node) {
    this.allowedTo(() => node.draining
      ? this.ask({ title: `Use ${name} again?`, button: "Undrain", act: async () => { await this.post(`/api/nodes/${encodeURIComponent(name)}/undrain`); this.toast(`${name} may be used again.`); } })
      : this.ask({
        title: `Drain ${name}?`, text: "Nothing new starts there. At the deadline what still runs is asked for a checkpoint and stopped.", button: "Drain",
        fields: [h("label", {}, "Deadline in minutes", h("input", { name: "minutes", type: "number", min: "0", max: "100000", value: "60", required: true })), h("label", {}, "Why", h("input", { name: "cause", maxlength: "200" }))],
        act: async ({ minutes, cause }) => { await this.post(`/api/nodes/${encodeURIComponent(name)}/drain`, { deadline_s: Number(minutes) * 60, cause }); this.toast(`The drain of ${name} is ordered.`); },
      }));
  }

  submit() {
    this.allowedTo(() => this.ask({
      title: "Submit a job", button: "Submit",
      fields: [
        h("label", {}, "Command", h("textarea", { name: "command", required: true, spellcheck: "false" }, "python train.py")),
        h("div.two", {}, h("label", {}, "Kind", h("select", { name: "kind" }, ["training", "batch_inference", "quantization", "debug"].map((kind) => h("option", { value: kind }, kind.replaceAll("_", " "))))), h("label", {}, "GPUs", h("input", { name: "sizes", required: true, value: "1", pattern: "[0-9, ]+", title: "Sizes it can use, for example 2, 4" }))),
        h("div.two", {}, h("label", {}, "Priority", h("input", { name: "priority", type: "number", min: "1", max: "100", value: "5", required: true })), h("label", {}, "Time limit, hours", h("input", { name: "hours", type: "number", min: "0.01", max: "8760", step: "any", value: "24", required: true }))),
        h("div.two", {}, h("label", {}, "Team", h("input", { name: "team" })), h("label", {}, "User", h("input", { name: "user" }))),
      ],
      act: async (form) => {
        const spec = { kind: form.kind, priority: Number(form.priority), sizes: form.sizes.split(",").map((one) => Number(one.trim())).filter((one) => one > 0), time_limit_s: Number(form.hours) * 3600, command: words(form.command) };
        if (form.team) spec.team = form.team;
        if (form.user) spec.user = form.user;
        const { sent } = await this.post("/api/jobs", spec);
        this.toast(`${sent[0].id} is submitted.`);
        this.app.select(sent[0].id);
      },
    }));
  }

  help() {
    const keys = [["/", "search"], ["g j n d v l r", "grid, jobs, nodes, demand, value, latency, reports"], ["Esc", "close the job"], ["arrows", "move in the grid or the list"], ["+ − 0", "zoom in, out, show everything"], ["Enter", "open the job"], ["?", "this"]];
    fill(byId("dialog"), h("h1", {}, "Keys"), h("div.keys", {}, keys.map(([key, what]) => [h("kbd", {}, key), h("span", {}, what)])), h("div.buttons", { css: { display: "flex", "justify-content": "flex-end", "margin-top": "16px" } }, h("button.main", { type: "button", onclick: () => byId("dialog").close() }, "Close")));
    byId("dialog").setAttribute("aria-label", "Keys");
    byId("dialog").showModal();
  }
}

/** A command line into words, with quotes, as a shell would. */
function words(text) {
  return [...text.matchAll(/"((?:[^"\\]|\\.)*)"|'([^']*)'|(\S+)/g)].map(([, double, single, plain]) => double?.replace(/\\(.)/g, "$1") ?? single ?? plain);
}
