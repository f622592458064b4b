// @ts-check
/** The form *Run as a GPU Job*: a file's few fields, and what would happen with them. */

const SOON_MS = 500;

/**
 * Make the form of a file. It asks half a second after the last change, one question at a time; an
 * answer to an older form is thrown away.
 * @param {any} fields the form, as the server describes it
 * @param {(values: any) => Promise<any>} send asks the server
 * @param {(answer: any) => void} submitted
 */
export function runForm(fields, send, submitted) {
  const form = document.createElement("form");
  form.className = "runai-lab-form";
  form.noValidate = true;
  const outcome = document.createElement("div");
  outcome.setAttribute("role", "status");
  outcome.className = "runai-lab-outcome";

  /** @param {string} name @param {string} label @param {string} help @param {HTMLElement} input */
  function add(name, label, help, input) {
    const box = document.createElement("label"), hint = document.createElement("small");
    input.setAttribute("name", name);
    box.append(label, input);
    hint.textContent = help;
    box.append(hint);
    form.append(box);
  }
  const text = (/** @type {string} */ placeholder, value = "") => Object.assign(document.createElement("input"), { type: "text", placeholder, value, spellcheck: false, autocomplete: "off" });
  for (const { name, label, help, example, value } of fields.fields) add(name, label, help, text(example, value));
  if (fields.projects.length > 1) {
    const select = document.createElement("select");
    if (!fields.project) select.append(new Option("choose …", ""));
    for (const project of fields.projects) select.append(new Option(project, project, false, project === fields.project));
    add("project", "Project", "", select);
  }
  add("arguments", fields.arguments, fields.arguments_help, text(""));
  const button = Object.assign(document.createElement("button"), { type: "submit", textContent: "Run", className: "jp-mod-styled jp-mod-accept" });
  form.append(outcome, button);

  const values = () => Object.fromEntries(new FormData(form));
  /** @param {string[]} lines @param {boolean} wrong */
  function say(lines, wrong) {
    outcome.classList.toggle("runai-lab-wrong", wrong);
    outcome.replaceChildren(...lines.map((line) => Object.assign(document.createElement("p"), { textContent: line })));
  }
  let changes = 0, isAsking = false, isSubmitting = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  async function preview() {
    if (isAsking || isSubmitting) return;
    isAsking = true;
    const asked = changes;
    const answer = await send({ ...values(), dry_run: true });
    isAsking = false;
    if (isSubmitting) return;
    if (asked !== changes) soon();
    else say(answer.error ? [answer.error] : answer.lines, Boolean(answer.error));
  }
  function soon() {
    clearTimeout(timer);
    timer = setTimeout(preview, SOON_MS);
  }
  form.addEventListener("input", () => { changes++; soon(); });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (isSubmitting) return;
    clearTimeout(timer);
    isSubmitting = button.disabled = true;
    say(["Submitting …"], false);
    const answer = await send(values());
    isSubmitting = button.disabled = false;
    if (answer.error) say([answer.error], true);
    else submitted(answer);
  });
  preview();
  return form;
}
