// @ts-check
// The forms: read what is typed, ask the API what would come of it, or do it. Outcomes are text.

import { call } from "./call.js";

const prefix = document.documentElement.dataset.prefix ?? "/";
/** The settings that can be tried before they are set. */
const TRIED = ["quota", "build_quota", "limit", "never_lent", "weight", "priority", "min_runtime"];

/** Key of the notes on a saved project, which its page shows once. */
const NOTES = "runai-project-notes";

/** @param {string} path */
const encoded = (path) => path.split("/").map(encodeURIComponent).join("/");

/** @param {HTMLFormElement} form @param {string[]} lines @param {boolean} [wrong] */
function tell(form, lines, wrong = false) {
  const place = /** @type {HTMLElement} */ (form.querySelector(".outcome"));
  place.className = wrong ? "outcome notice" : "outcome";
  place.replaceChildren(...lines.map((line) => Object.assign(document.createElement("p"), { textContent: line })));
}

/** @param {HTMLInputElement} field */
function valueOf(field) {
  const typed = field.value.trim();
  if (field.dataset.kind === "names") return typed.split(/[\s,]+/).filter(Boolean);
  if (!typed) return null;
  if (field.name === "quota" && typed.includes("=")) {
    const parts = typed.split(",").map((part) => part.split("=").map((word) => word.trim()));
    return Object.fromEntries(parts.map(([type, gpus]) => [type, gpus === "none" ? null : gpus]));
  }
  return field.dataset.kind === "number" ? Number(typed) : typed;
}

/** What was changed in a form. @param {HTMLFormElement} form @returns {Record<string, any>} */
function changed(form) {
  const fields = /** @type {HTMLInputElement[]} */ ([...form.querySelectorAll("input[data-kind]")]);
  return Object.fromEntries(fields.filter((f) => f.value !== f.defaultValue).map((f) => [f.name, valueOf(f)]));
}

/** @type {Record<string, string>} */
const BECOMES = { "starts later": "soon start", starts: "start", stops: "pause", waits: "make wait", moves: "move", resizes: "resize", runs: "run", gone: "end" };

/** @param {any} found an answer of what would be */
function effects(found) {
  const lines = found.effects.map((/** @type {any} */ effect) =>
    `would ${BECOMES[effect.after] ?? effect.after} ${effect.workload} (${effect.user}, ${effect.gpus} GPU${effect.gpus === 1 ? "" : "s"})${effect.reason?.text ? `: ${effect.reason.text}` : ""}`);
  for (const [outcome, count] of Object.entries(found.others)) lines.push(`would ${BECOMES[outcome] ?? outcome} ${count} of other people's workloads`);
  for (const project of found.projects) {
    if (project.fair_share !== project.fair_share_before) lines.push(`${project.name}'s fair share: ${project.fair_share_before} → ${project.fair_share} GPUs`);
  }
  return lines.length ? lines : ["Nothing would start, stop or wait otherwise."];
}

/** @type {Record<string, {preview: (form: HTMLFormElement) => Promise<string[]>, save: (form: HTMLFormElement) => Promise<string[]>}>} */
const FORMS = {
  project: {
    async preview(form) {
      const set = Object.entries(changed(form)).filter(([name]) => TRIED.includes(name))
        .map(([setting, value]) => ({ project: form.dataset.project, setting, value: value === null || typeof value === "object" ? value : String(value) }));
      if (!set.length) return ["Change a number first."];
      return effects(await call("POST", "plan", { set }));
    },
    async save(form) {
      const name = form.dataset.project || /** @type {HTMLInputElement} */ (form.elements.namedItem("name")).value;
      const fields = changed(form);
      const saved = await call("PUT", `projects/${encoded(name)}`, fields);
      if (fields.members || fields.admins) sessionStorage.setItem(NOTES, JSON.stringify(saved.notes));
      location.assign(`${prefix}projects/${encoded(name)}`);
      return ["Saved."];
    },
  },
  submit: {
    async preview(form) {
      const { workloads, notes, unchecked } = await call("POST", "workloads?dry_run=true", request(form));
      return [...workloads.map((/** @type {any} */ w) => {
        const what = `${w.id} would be submitted with ${w.gpus} ${w.gpus === 1 ? "GPU" : "GPUs"}`;
        if (w.reason?.code === "stopping" && w.expected_start?.text) return `${what}; it ${w.expected_start.text}.`;
        const first = w.reason ? `${what} and wait` : what + (unchecked ? "" : " and start at once");
        return w.expected_start?.text ? `${first}, ${w.expected_start.text}.` : `${first}.`;
      }), ...notes];
    },
    async save(form) {
      const { workloads } = await call("POST", "workloads", request(form));
      location.assign(`${prefix}workloads/${encoded(workloads[0].id)}`);
      return ["Submitted."];
    },
  },
};

/** Variables of lines NAME=VALUE. @param {string} lines @returns {Record<string, string>} */
const variables = (lines) => Object.fromEntries(lines.split("\n").map((line) => line.trim()).filter(Boolean)
  .map((line) => {
    const [name, ...value] = line.split("=");
    if (!value.length) throw new Error(`${line} has no value: write ${line}=VALUE.`);
    return [name, value.join("=")];
  }));

/** An error of the API with the label of the field that it names; the field is focused. @param {HTMLFormElement} form @param {string} sentence */
function inLabels(form, sentence) {
  for (const field of /** @type {NodeListOf<HTMLInputElement>} */ (form.querySelectorAll("[data-request]"))) {
    if (!sentence.startsWith(`${field.name} `) && !sentence.startsWith(`${field.name}: `)) continue;
    field.closest("details")?.setAttribute("open", "");
    field.focus();
    return `${field.labels?.[0].textContent?.trim()}${sentence.slice(field.name.length)}`;
  }
  return sentence;
}

/** The request that a form has; an empty field has its default. @param {HTMLFormElement} form */
function request(form) {
  const typed = new FormData(form);
  const text = (/** @type {string} */ name) => String(typed.get(name) ?? "").trim();
  /** @type {Record<string, any>} */
  const fields = { project: text("project"), command: ["/bin/sh", "-c", text("command")], workdir: text("workdir") };
  for (const field of /** @type {NodeListOf<HTMLInputElement>} */ (form.querySelectorAll("[data-request]"))) {
    if (!typed.has(field.name) || !text(field.name)) continue;
    const kind = field.dataset.request;
    fields[field.name] = kind === "check" ? true : kind === "lines" ? variables(text(field.name)) : text(field.name);
  }
  return fields;
}

/** @param {HTMLFormElement} form @param {"preview" | "save"} what */
async function run(form, what) {
  if (!form.reportValidity()) return;
  tell(form, ["Asking …"]);
  try {
    tell(form, await FORMS[form.dataset.form ?? ""][what](form));
  } catch (error) {
    tell(form, [inLabels(form, error instanceof Error ? error.message : String(error))], true);
  }
}

for (const form of /** @type {NodeListOf<HTMLFormElement>} */ (document.querySelectorAll("form[data-form]"))) {
  form.addEventListener("submit", (event) => { event.preventDefault(); run(form, "save"); });
  form.querySelector("[data-do=preview]")?.addEventListener("click", () => run(form, "preview"));
  const notes = JSON.parse(sessionStorage.getItem(NOTES) ?? "[]");
  sessionStorage.removeItem(NOTES);
  if (notes.length) tell(form, ["Saved.", ...notes]);
}
