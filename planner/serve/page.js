"use strict";
(function () {
  const at = function (id) { return document.getElementById(id); };
  const own = document.querySelector("meta[name=planner-session]").content;
  let session = own;
  const questions = new Map();  // by id, as the server last told them
  const parents = new Map();  // of an answer that a change gave: the answer before it
  const marked = new Set();
  let shown = null;
  let uploaded = null;  // the file that was taken, with its id

  // --- Asking the server

  const call = async function (method, path, body) {
    const headers = { "X-Planner-Session": session };
    const isFile = body instanceof Blob;
    if (body !== undefined && !isFile) { headers["Content-Type"] = "application/json"; }
    try {
      const answer = await fetch(path, { method: method, headers: headers, body: body === undefined || isFile ? body : JSON.stringify(body) });
      return { status: answer.status, data: await answer.json() };
    } catch (error) {
      return { status: 0, data: { error: { message: "planner serve does not answer. Is it still running?", faults: [] } } };
    }
  };
  const wait = function (ms) { return new Promise(function (done) { window.setTimeout(done, ms); }); };
  const say = function (text) { at("said").textContent = text; };

  // --- The form

  const made = function (tag, text, attributes) {
    const found = document.createElement(tag);
    if (text) { found.textContent = text; }
    Object.entries(attributes || {}).forEach(function (one) { found.setAttribute(one[0], one[1]); });
    return found;
  };
  const choices = function () {
    const picked = {};
    document.querySelectorAll("[data-choice]:checked").forEach(function (one) { picked[one.dataset.choice] = one.value; });
    return picked;
  };
  const toggle = function () {
    const picked = choices();
    document.querySelectorAll("[data-when]").forEach(function (one) {
      const parts = one.dataset.when.split("=");
      one.hidden = picked[parts[0]] !== parts[1];
    });
  };
  const kinds = { machines: "row", jobs: "job", limits: "limit" };  // of rows: where they stand, and their template
  const addRow = function (where) {
    const row = at(kinds[where]).content.cloneNode(true).querySelector("fieldset");
    row.querySelector(".remove").addEventListener("click", function () { row.remove(); number(); (where === "machines" ? at("add") : at("add-" + kinds[where])).focus(); });
    const place = row.querySelector(".place");
    if (place) { place.addEventListener("change", number); }
    at(where).append(row);
    number();
    return row;
  };
  const rowsOf = function (where) { return Array.from(at(where).querySelectorAll("fieldset")); };
  const number = function () {
    rowsOf("machines").forEach(function (row, index, rows) {
      row.querySelector("legend").textContent = "Machines " + (index + 1);
      row.querySelectorAll("[name]").forEach(function (one) { one.dataset.field = "cluster.machines." + index + "." + one.name; });
      row.querySelector(".remove").hidden = rows.length === 1;
    });
    rowsOf("jobs").forEach(function (row, index) {
      row.querySelector("legend").textContent = "Training " + (index + 2);
      row.querySelectorAll("[name]").forEach(function (one) { one.dataset.field = "procure.jobs." + (index + 1) + "." + one.name; });
    });
    rowsOf("limits").forEach(function (row) { row.querySelector(".value").dataset.field = row.querySelector(".place").value; });
  };
  const valueOf = function (input) {
    const text = input.value.trim();
    if (input.validity && input.validity.badInput) { return "not a number"; }
    const unit = input.parentElement.querySelector("[data-unit-of]");
    if (!text) { return ""; }
    if (unit) { return text + " " + unit.value; }
    return input.type === "number" ? Number(text) : text;
  };
  const put = function (tree, place, value) {
    const keys = place.split("."), last = keys.pop();
    keys.reduce(function (part, key) { part[key] = part[key] || {}; return part[key]; }, tree)[last] = value;
  };
  const meant = function (text) {  // as a spec has it: a number, whether or not, or text
    if (/^[+-]?\d+(\.\d+)?$/.test(text)) { return Number(text); }
    return text === "true" || text === "false" ? text === "true" : text;
  };
  const sizesOf = function (text) {
    const found = {};
    (text ? text.split(",") : []).forEach(function (one) { const [name, size] = one.split("="); found[name.trim()] = meant((size || "").trim()); });
    return found;
  };
  const listed = function (text) { return text ? text.split(",").map(function (one) { return one.trim(); }) : ""; };
  const isDevice = function (name) { return Array.from(at("kinds").options).some(function (one) { return one.value === name && "device" in one.dataset; }); };
  const formOf = function () {
    const picked = choices();
    const question = { dnn: {} };
    document.querySelectorAll("#form [name^='dnn.']:not(.row *)").forEach(function (input) {
      if (input.closest("[hidden]")) { return; }
      const key = input.name.slice(4);
      question.dnn[key === "batch" ? at("batch-of").value : key] = valueOf(input);
    });
    if (picked.network === "file") {
      question.dnn.upload = uploaded ? uploaded.id : "";
      question.dnn.dimensions = sizesOf(question.dnn.dimensions);
    }
    if (picked.with === "machines") {
      question.cluster = { machines: Array.from(document.querySelectorAll("#machines fieldset")).map(function (row) {
        const values = {};
        row.querySelectorAll("[name]").forEach(function (input) {
          values[input.name === "machine" && isDevice(input.value.trim()) ? "device" : input.name] = valueOf(input);
        });
        return values;
      }) };
    } else if (picked.with === "testbed") {
      question.cluster = { preset: document.querySelector("[name='cluster.preset']").value };
    } else {
      question.procure = { terms: Array.from(document.querySelectorAll("[data-term]:checked")).map(function (one) { return one.dataset.term; }) };
      document.querySelectorAll("[name^='procure.']").forEach(function (input) {
        const key = input.name.slice(8);
        question.procure[key] = key === "providers" || key === "devices" ? listed(valueOf(input)) : valueOf(input);
      });
      if (rowsOf("jobs").length) {  // each has a name, and a deadline of its own
        const first = { dnn: question.dnn, runs_per_month: valueOf(document.querySelector("[name='runs']")) || 1, deadline: question.procure.deadline };
        delete question.dnn;
        delete question.procure.deadline;
        question.procure.jobs = [first].concat(rowsOf("jobs").map(function (row) {
          const job = {};
          row.querySelectorAll("[name]").forEach(function (input) { put(job, input.name, valueOf(input)); });
          return job;
        }));
        question.procure.jobs = question.procure.jobs.map(function (job, index) {
          return Object.assign({ name: (index + 1) + " " + (job.dnn.zoo || "file"), runs_per_month: 1 }, job);
        });
      }
    }
    rowsOf("limits").forEach(function (row) {
      const text = row.querySelector(".value").value.trim(), place = row.querySelector(".place");
      if (text) { put(question, place.value, "list" in place.selectedOptions[0].dataset ? listed(text).map(meant) : meant(text)); }
    });
    return { question: question, time_limit_s: valueOf(document.querySelector("[name='time_limit_s']")) || undefined, explain: at("explain").checked };
  };

  // --- What is wrong: beside its field, where there is one that is seen

  const clearFaults = function () {
    document.querySelectorAll(".fault").forEach(function (one) { one.remove(); });
    document.querySelectorAll("[aria-invalid]").forEach(function (one) { one.removeAttribute("aria-invalid"); one.removeAttribute("aria-describedby"); });
    at("faults").hidden = true;
  };
  const fieldOf = function (place, root) {
    const parts = (place || "").replace(/^procure\.jobs\.0\.(dnn\.)?/, function (all, dnn) { return dnn || "procure."; }).replace("procure.runs_per_month", "runs").replace(/global_batch|batch_per_device/, "batch").replace(/\.device$/, ".machine").split(".");
    const fields = Array.from(root.querySelectorAll("[name], [data-field]")).filter(function (one) { return !one.closest("[hidden]"); });
    const named = function (one) { return one.dataset.field || one.name; };
    for (let size = parts.length; size > 0; size -= 1) {
      const name = parts.slice(0, size).join(".");
      const found = fields.find(function (one) { return named(one) === name; });
      if (found) { return found; }
    }
    return (place && fields.find(function (one) { return named(one).startsWith(parts.join(".") + "."); })) || null;
  };
  const showError = function (error, root) {
    clearFaults();
    const rest = [];
    let first = null;
    (error.faults || []).forEach(function (fault, index) {
      const text = [fault.problem, fault.mend].filter(Boolean).join(" ");
      const field = (root && fieldOf(fault.field, root)) || fieldOf(fault.field, at("form"));
      if (!field) { rest.push([fault.field, text].filter(Boolean).join(": ")); return; }
      const closed = field.closest("details:not([open])");
      if (closed) { closed.open = true; }
      const note = made("span", text, { class: "fault", id: "fault-" + index });
      const box = field.closest(".field, .assumption") || field;
      if (box.matches("label") && !field.hasAttribute("aria-label")) {  // the note describes the field, and does not name it
        field.setAttribute("aria-label", box.firstElementChild.textContent);
      }
      box.append(note);
      field.setAttribute("aria-invalid", "true");
      field.setAttribute("aria-describedby", note.id);
      first = first || field;
    });
    at("faults").textContent = rest.length || !first ? rest.join("\n") || error.message : "Some fields are wrong; each says why.";
    at("faults").hidden = false;
    if (first) { first.focus(); }
  };

  // --- Questions

  const watch = async function (id) {
    for (;;) {
      const told = await call("GET", "/api/questions/" + encodeURIComponent(id));
      if (told.status === 0) { await wait(2000); continue; }
      if (told.status !== 200 && !told.data.id) { questions.delete(id); list(); return; }
      questions.set(id, told.data);
      list();
      if (told.data.state === "done") {
        say(told.data.answer);
        show(id);
        if (document.activeElement === at("ask")) { at("questions").scrollIntoView(); }  // who goes on in the form is left there
        return;
      }
      if (told.data.state === "failed") {
        say("No answer: " + told.data.error.message);
        if (told.status === 422) {  // said beside its field; the question itself is of no further use
          await call("DELETE", "/api/questions/" + encodeURIComponent(id));
          questions.delete(id);
          list();
          showError(told.data.error, told.data.note && shown !== null ? at("assumed") : null);
        }
        return;
      }
      await wait(document.hidden ? 2000 : Math.min(400, 40 + 100 * told.data.seconds));  // small questions take no time
    }
  };
  const begin = function (answer, parent) {
    if (answer.status !== 202) { showError(answer.data.error); return; }
    clearFaults();
    questions.set(answer.data.id, answer.data);
    if (parent) { parents.set(answer.data.id, parent); }
    say("Asked: " + answer.data.title);
    list();
    watch(answer.data.id);
  };
  const nameOf = function (one) { return one.title + (one.note ? "; " + one.note : ""); };
  const stateOf = function (one) {
    if (one.state === "waiting") { return "waits; " + one.place + " before it"; }
    if (one.state === "searching") { return "searching for " + one.seconds.toFixed(0) + " s: " + one.progress; }
    return one.state === "failed" ? one.error.message : one.answer;
  };
  const rows = new Map();
  const rowOf = function (one) {
    if (rows.has(one.id)) { return rows.get(one.id); }
    const row = made("li");
    const mark = made("input", "", { type: "checkbox", "aria-label": "Mark for comparing" });
    mark.addEventListener("change", function () { if (mark.checked) { marked.add(one.id); } else { marked.delete(one.id); } list(); });
    const what = made("div", "", { class: "what" });
    what.append(made("p", "", { class: "name" }), made("p", "", { class: "note" }));
    const bar = made("progress", "", { "aria-label": "Searching" });
    const look = made("button", "Show", { type: "button" });
    look.addEventListener("click", function () { show(one.id); at("title").focus(); });
    const end = made("button", "Stop", { type: "button" });
    end.addEventListener("click", async function (event) {
      const isOver = ["done", "failed"].includes(questions.get(one.id).state);
      if (isOver && event.detail > 1) { return; }  // the second click of a double one on Stop, which has become Remove
      await call("DELETE", "/api/questions/" + encodeURIComponent(one.id));
      if (isOver) { questions.delete(one.id); marked.delete(one.id); if (shown === one.id) { shown = null; at("answer").hidden = true; } list(); at("questions").focus(); }
    });
    row.append(mark, what, bar, look, end);
    rows.set(one.id, row);
    at("list").prepend(row);
    return row;
  };
  const set = function (element, text) { if (element.textContent !== text) { element.textContent = text; } };
  const list = function () {
    rows.forEach(function (row, id) { if (!questions.has(id)) { row.remove(); rows.delete(id); } });
    at("questions").hidden = questions.size === 0;
    at("to-questions").hidden = at("questions").hidden;
    at("to-answer").hidden = at("answer").hidden;
    questions.forEach(function (one) {
      const row = rowOf(one);
      const [mark, what, bar, look, end] = row.children;
      const isOver = one.state === "done" || one.state === "failed";
      set(what.children[0], nameOf(one));
      set(what.children[1], stateOf(one));
      mark.hidden = look.hidden = one.state !== "done";
      mark.hidden = mark.hidden || !one.objective;  // a comparison, or what has no answer
      mark.checked = marked.has(one.id);
      bar.hidden = isOver;
      if (one.state === "searching") { bar.max = one.most_s; bar.value = Math.min(one.seconds, one.most_s); } else { bar.removeAttribute("value"); }
      if (isOver && end.textContent === "Stop" && document.activeElement === end && !look.hidden) { look.focus(); }  // Enter twice would remove
      set(end, isOver ? "Remove" : "Stop");
      row.setAttribute("aria-current", String(one.id === shown));
    });
    at("compare").disabled = marked.size !== 2;
  };

  // --- An answer

  const movedWords = function (one, before) {
    const a = before.objective, b = one.objective;
    if (!a || !b || one.title !== before.title || a.name !== b.name || !(a.value > 0)) { return ""; }
    const change = 100 * (b.value / a.value - 1);
    const words = Math.abs(change) < 0.05 ? "no change" : (change > 0 ? "+" : "\u2212") + Math.abs(change).toFixed(1) + " %";
    return b.name.replace(/_s$/, "").replace(/_/g, " ") + ": " + a.words + " \u2192 " + b.words + " (" + words + ")";
  };
  const assumption = function (id, row, index) {
    const line = made("div", "", { class: "assumption" });
    const label = made("label", row.is_changed ? (row.text.match(/^[^:]{1,40}(?=: )/) || [row.place.join(".")])[0] + ", as you say" : row.text);
    const note = row.is_changed ? "assumed before: " + row.text : row.effect;
    if (note) { label.append(made("span", note, { class: "note" })); }
    line.append(label);
    if (row.place) {
      const input = made("input", "", { type: "text", id: "assumption-" + index, maxlength: "200", autocomplete: "off", "data-field": row.place.join(".") });
      input.value = row.value === null ? "" : String(row.value);
      if (row.value === null && row.like !== null) { input.placeholder = "e.g. " + row.like; }
      label.htmlFor = input.id;
      input.addEventListener("change", async function () {
        const values = {};
        values[index] = input.value;
        if (input.value.trim()) { begin(await call("POST", "/api/questions/" + encodeURIComponent(id) + "/change", { values: values }), id); }
      });
      line.append(input);
    } else {
      line.append(made("span", "set in a spec: " + row.flag, { class: "note" }));
    }
    return line;
  };
  const sides = function (one, pair) {
    const table = made("table");
    const names = Array.from(new Set(pair.flatMap(function (part) { return part.tiles.map(function (tile) { return tile[0]; }); })));
    const head = made("tr");
    head.append(made("th", "figure", { scope: "col" }), made("th", "A: " + nameOf(pair[0]), { scope: "col" }), made("th", "B: " + nameOf(pair[1]), { scope: "col" }));
    table.append(made("caption", "Side by side"), made("thead"), made("tbody"));
    table.tHead.append(head);
    const line = function (name, values) {
      const row = made("tr");
      row.append(made("th", name, { scope: "row" }), made("td", values[0]), made("td", values[1]));
      table.tBodies[0].append(row);
    };
    line("answer", pair.map(function (part) { return part.answer; }));
    names.forEach(function (name) { line(name, pair.map(function (part) { return (part.tiles.find(function (tile) { return tile[0] === name; }) || ["", "\u2013"])[1]; })); });
    at("sides").replaceChildren(table);
  };
  const pairs = new Map();  // of a comparison: the two that it compares
  const show = function (id) {
    const one = questions.get(id);
    if (!one || one.state !== "done") { return; }
    const focused = document.activeElement && document.activeElement.id;
    shown = id;
    at("answer").hidden = false;
    at("title").textContent = nameOf(one);
    at("sentence").textContent = one.answer;
    at("verdict").textContent = one.verdict;
    at("verdict").hidden = !one.verdict;
    at("verdict").className = "verdict " + one.mark;
    const before = questions.get(parents.get(id));
    const words = before ? movedWords(one, before) : "";
    at("moved").textContent = words;
    at("moved").hidden = !words;
    at("tiles").replaceChildren(...one.tiles.map(function (tile) {
      const box = made("div");
      box.append(made("dt", tile[0]), made("dd", tile[1]));
      return box;
    }));
    at("minded").replaceChildren(...(one.minded || []).flatMap(function (row) { return [made("dt", row[0]), made("dd", row[1])]; }));
    const lines = one.assumptions || [];
    at("assumed").hidden = lines.length === 0;
    at("assumptions").replaceChildren(...lines.map(function (row, index) { return assumption(id, row, index); }));
    at("repeat").hidden = !one.spec;
    at("spec").textContent = one.spec || "";
    at("command").textContent = one.command || "";
    const pair = pairs.get(id);
    at("sides").hidden = !pair;
    if (pair) { sides(one, pair); }
    at("report").src = one.report;
    at("alone").href = one.report + "?whole";
    list();
    window.sessionStorage.setItem("planner-shown", id);
    if (focused && focused.startsWith("assumption-") && at(focused)) { at(focused).focus(); }
  };

  let plots = null;  // the library of the plots, loaded once; a report has no origin, and is sent it
  at("report").addEventListener("load", async function () {
    plots = plots || fetch("plots.js").then(function (answer) { return answer.ok ? answer.text() : Promise.reject(answer); });
    try { at("report").contentWindow.postMessage(await plots, "*"); } catch (error) { plots = null; }
  });

  // --- What the user does

  at("form").addEventListener("submit", async function (event) {
    event.preventDefault();
    clearFaults();
    const file = at("file").files[0];
    if (choices().network === "file") {
      if (!file) { showError({ faults: [{ field: "dnn.upload", problem: "no file is chosen.", mend: "Choose one." }] }); return; }
      if (!uploaded || uploaded.file !== file) {
        say("Uploading " + file.name);
        const answer = await call("POST", "/api/networks?name=" + encodeURIComponent(file.name), file);
        if (answer.status !== 201) { showError(answer.data.error); return; }
        uploaded = { file: file, id: answer.data.id };
      }
    }
    const asked = await call("POST", "/api/questions", formOf());
    begin(asked, questions.has(shown) && questions.get(shown).assumptions ? shown : null);
    at("questions").scrollIntoView({ block: "nearest" });
  });
  at("assumed").addEventListener("submit", function (event) { event.preventDefault(); });
  at("add").addEventListener("click", function () { addRow("machines").querySelector("input").focus(); });
  at("add-job").addEventListener("click", function () { addRow("jobs").querySelector("input").focus(); });
  at("add-limit").addEventListener("click", function () { addRow("limits").querySelector("select").focus(); });
  document.querySelectorAll("[data-choice]").forEach(function (one) { one.addEventListener("change", toggle); });
  at("compare").addEventListener("click", async function () {
    const two = Array.from(marked);
    const pair = two.map(function (id) { return questions.get(id); });
    const answer = await call("POST", "/api/comparisons", { ids: two });
    if (answer.status === 202) { pairs.set(answer.data.id, pair); }
    begin(answer, null);
  });
  at("save").addEventListener("click", function () {
    const link = made("a", "", { download: "question.yaml", href: URL.createObjectURL(new Blob([at("spec").textContent], { type: "application/yaml" })) });
    link.click();
    window.setTimeout(function () { URL.revokeObjectURL(link.href); }, 10000);
  });
  at("copy").addEventListener("click", async function () {
    try { await navigator.clipboard.writeText(at("command").textContent); say("Copied."); } catch (error) { say("The browser does not allow copying here."); }
  });

  // --- A page that is loaded again has its form as it was, also where planner serve was started anew

  const inputs = function () { return Array.from(at("form").querySelectorAll("input:not([type=file]), select")); };
  const isMark = function (input) { return input.type === "checkbox" || input.type === "radio"; };
  const keep = function () {
    const numbers = Object.keys(kinds).map(function (where) { return rowsOf(where).length; });
    const values = inputs().map(function (input) { return isMark(input) ? input.checked : input.value; });
    window.sessionStorage.setItem("planner-form", JSON.stringify({ numbers: numbers, values: values }));
  };
  const restore = function () {
    const kept = JSON.parse(window.sessionStorage.getItem("planner-form") || "null");
    if (!kept) { return; }
    Object.keys(kinds).forEach(function (where, index) { while (rowsOf(where).length < kept.numbers[index]) { addRow(where); } });
    if (inputs().length !== kept.values.length) { return; }  // of another version of the page
    inputs().forEach(function (input, index) { input[isMark(input) ? "checked" : "value"] = kept.values[index]; });
    number();
  };
  window.addEventListener("pagehide", keep);

  // --- It sees what it asked before, while planner serve runs

  const start = async function () {
    addRow("machines");
    restore();
    toggle();
    const before = window.sessionStorage.getItem("planner-session");
    if (before) {
      session = before;
      const answer = await call("GET", "/api/questions");
      if (answer.status === 200) {
        answer.data.questions.forEach(function (one) { questions.set(one.id, one); });
        list();
        show(window.sessionStorage.getItem("planner-shown"));
        answer.data.questions.forEach(function (one) { if (one.state !== "done" && one.state !== "failed") { watch(one.id); } });
      } else {
        session = own;
      }
    }
    window.sessionStorage.setItem("planner-session", session);
  };
  start();
}());
