// What happens on the page. The video that is chosen stays in the browser's memory too: "before" is played from there.
"use strict";

const $ = (id) => document.getElementById(id);
const state = {
  choices: [], limits: null, file: null, label: "", video: null, about: null, choice: null,
  hide: new Set(["face", "hair"]), still: 0, points: [], cross: [0.5, 0.5], job: null, audit: null, busy: false,
};

// ---------------------------------------------------------------- requests to the server

async function call(path, { method = "GET", json } = {}) {
  let answer;
  try {
    answer = await fetch(path, { method, body: json === undefined ? undefined : JSON.stringify(json) });
  } catch {
    throw new Error("The server does not answer: see whether it still runs.");
  }
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const error = new Error(content.error || "Something went wrong here. Try again.");
    error.gone = answer.status === 404;
    throw error;
  }
  return content;
}

function upload(file, name, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", "videos");
    request.setRequestHeader("X-Name", encodeURIComponent(name));
    request.upload.onprogress = (event) => event.lengthComputable && onProgress(event.loaded / event.total);
    request.onerror = () => reject(new Error("The video could not be sent: see whether the server still runs."));
    request.onload = () => {
      let content = {};
      try { content = JSON.parse(request.responseText); } catch { /* the error below */ }
      if (request.status === 200) resolve(content);
      else reject(new Error(content.error || "The video could not be used. Try another."));
    };
    request.send(file);
  });
}

const announce = (message) => { $("announcement").textContent = message; };
const fail = (place, error) => { $(place).textContent = error ? error.message || String(error) : ""; };
const clock = (s) => `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, "0")}`;
const length = (s) => s < 90 ? `${s < 10 ? s.toFixed(1) : Math.round(s)} seconds` : s % 60 < 1 ? `${Math.floor(s / 60)} minutes` : `${clock(s)} minutes`;
const size = (bytes) => bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.ceil(bytes / 1e3)} kB`;
function span(s) {
  if (s < 1.5) return "about a second";
  if (s < 90) return `about ${Math.round(s)} seconds`;
  if (s < 5400) return `about ${Math.round(s / 60)} minutes`;
  return `about ${(s / 3600).toFixed(1)} hours`;
}
function make(tag, more = {}, ...inner) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(more)) {
    if (key === "class") element.className = value;
    else if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...inner);
  return element;
}

// ---------------------------------------------------------------- the video

async function choose(file, label) {
  fail("video-error");
  if (state.limits && file.size > state.limits.bytes) {
    fail("video-error", new Error(`This video has ${size(file.size)}: the limit is ${Math.round(state.limits.bytes / 2 ** 20)} MB.`));
    return;
  }
  clearResult();
  state.file = file;
  state.label = label;
  state.points = [];
  $("drop").hidden = true;
  $("chosen").hidden = false;
  $("name").textContent = label;
  await send();
}

// Bring the video to the server, unless it has it: after a job it has not, for the job has deleted it.
async function send() {
  if (state.video) return true;
  state.busy = true;
  ready();
  $("about").textContent = "Sending…";
  try {
    const properties = await upload(state.file, state.label, (share) => {
      $("about").textContent = share < 1 ? `Sending… ${Math.round(100 * share)} %` : "Inspecting…";
    });
    state.video = properties.video;
    state.about = properties;
    const lasts = properties.seconds ? length(properties.seconds) : "length unknown";
    $("about").textContent = `${properties.width} × ${properties.height}, ${lasts}, ${size(state.file.size)}`;
    document.documentElement.style.setProperty("--aspect", `${properties.width} / ${properties.height}`);
    if (!$("before-video").src) showBefore();
    showStills();
    return true;
  } catch (error) {
    fail("video-error", error);
    unchoose();
    return false;
  } finally {
    state.busy = false;
    ready();
  }
}

function unchoose() {
  state.file = state.video = state.about = null;
  $("drop").hidden = false;
  $("chosen").hidden = true;
  const before = $("before-video");
  if (before.src) URL.revokeObjectURL(before.src);
  before.removeAttribute("src");
  before.load();
  before.hidden = true;
  showStills();
  ready();
}

function showBefore() {
  const before = $("before-video");
  before.src = URL.createObjectURL(state.file);
  before.hidden = false;
  before.onerror = () => { before.hidden = true; empty("before", "Your browser cannot play this format; Veil can read it."); };
}

function empty(screen, message) { $(screen).querySelector(".empty").textContent = message; }

async function useSample() {
  fail("video-error");
  $("sample").disabled = true;
  try {
    const answer = await fetch("sample.mp4");
    if (!answer.ok) throw new Error("The sample could not be made here. Try a file of yours.");
    const blob = await answer.blob();
    await choose(new File([blob], "sample.mp4", { type: "video/mp4" }), "sample.mp4");
  } catch (error) {
    fail("video-error", error);
  } finally {
    $("sample").disabled = false;
  }
}

let camera = null, recorder = null;

async function openCamera() {
  fail("video-error");
  if (!navigator.mediaDevices || !window.MediaRecorder) {
    fail("video-error", new Error("Browsers give a camera to pages of this machine or by HTTPS only: record a file, and choose it."));
    return;
  }
  try {
    camera = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1280 } }, audio: false });
  } catch {
    fail("video-error", new Error("There is no camera, or it was not allowed: choose a file instead."));
    return;
  }
  $("drop").hidden = true;
  $("recording").hidden = false;
  $("viewfinder").srcObject = camera;
  $("viewfinder").play();
  $("record").focus();
}

function closeCamera(back = true) {
  if (camera) camera.getTracks().forEach((track) => track.stop());
  camera = recorder = null;
  $("viewfinder").srcObject = null;
  $("recording").hidden = true;
  $("record").textContent = "Record";
  if (back) $("drop").hidden = false;
}

function record() {
  if (recorder) { recorder.stop(); return; }
  const pieces = [];
  const began = performance.now();
  recorder = new MediaRecorder(camera);
  recorder.ondataavailable = (event) => pieces.push(event.data);
  recorder.onstop = () => {
    clearInterval(ticking);
    const blob = new Blob(pieces, { type: pieces[0] ? pieces[0].type : "" });
    closeCamera(false);
    choose(new File([blob], "camera.webm", { type: blob.type }), "camera.webm");
  };
  const most = Math.min(60, state.limits ? state.limits.seconds : 60);
  const ticking = setInterval(() => {
    const seconds = (performance.now() - began) / 1000;
    $("record").textContent = `Stop (${clock(seconds)})`;
    if (seconds > most && recorder) recorder.stop();
  }, 200);
  $("record").textContent = "Stop (0:00)";
  recorder.start(500);
}

// ---------------------------------------------------------------- what is hidden

function showChoices() {
  $("choices").replaceChildren(...state.choices.map((choice) => {
    const input = make("input", { type: "radio", name: "choice", value: choice.key, checked: choice.key === state.choice });
    input.onchange = () => pickChoice(choice.key);
    const more = make("dl", { class: "more" },
      make("dt", {}, "Keeps"), make("dd", {}, choice.keeps), make("dt", {}, "Measured"), make("dd", {}, choice.measured),
      make("dt", {}, "Limitations"), make("dd", {}, choice.limitations));
    return make("label", { class: "choice" }, input,
      make("span", {}, make("span", { class: "title" }, choice.title), make("br"), make("span", { class: "hides" }, choice.hides), more));
  }));
  $("audit-choices").replaceChildren(...state.choices.map((choice) => {
    const input = make("input", { type: "checkbox", value: choice.key, checked: choice.key === state.choice });
    return make("label", { class: "chip" }, input, choice.title);
  }));
}

function pickChoice(key) {
  state.choice = key;
  $("pick").hidden = !chosen().picks;
  for (const input of $("audit-choices").querySelectorAll("input")) input.checked = input.value === key;
  ready();
}

const chosen = () => state.choices.find((choice) => choice.key === state.choice);

function chips(place, names) {
  place.replaceChildren(...names.map((name) => {
    const input = make("input", { type: "checkbox", value: name, checked: state.hide.has(name) });
    input.onchange = () => { if (input.checked) state.hide.add(name); else state.hide.delete(name); ready(); };
    return make("label", { class: "chip" }, input, name);
  }));
}

function showParts() {
  chips($("parts"), state.parts);
  chips($("templates"), [...state.own, ...state.templates.filter((name) => !state.own.includes(name))]);
}

function showStills() {
  const there = Boolean(state.video);
  $("pointing").hidden = !there;
  $("point-empty").hidden = there;
  if (!there) return;
  $("point-message").textContent = "";
  state.still = Math.min(state.still, state.about.stills.length - 1);
  $("stills").replaceChildren(...state.about.stills.map((second, number) => {
    const button = make("button", { type: "button", "aria-pressed": String(number === state.still) },
      make("img", { src: `videos/${state.video}/still-${number}.png`, alt: `at ${second} seconds` }));
    button.onclick = () => { state.still = number; state.points = []; showStills(); };
    return button;
  }));
  showPicture(`videos/${state.video}/still-${state.still}.png`);
}

function showPicture(source) {
  const image = make("img", { src: source, alt: "", draggable: false });
  $("picture").replaceChildren(image, make("span", { class: "cross" }));
  showMarks();
}

function showMarks() {
  for (const mark of $("picture").querySelectorAll(".mark")) mark.remove();
  for (const [x, y] of state.points) {
    const mark = make("span", { class: "mark" });
    mark.style.left = `${100 * x}%`;
    mark.style.top = `${100 * y}%`;
    $("picture").append(mark);
  }
  const cross = $("picture").querySelector(".cross");
  if (cross) { cross.style.left = `${100 * state.cross[0]}%`; cross.style.top = `${100 * state.cross[1]}%`; }
}

function mark(x, y) {
  state.points.push([Math.min(0.999, Math.max(0, x)), Math.min(0.999, Math.max(0, y))]);
  showMarks();
  announce(`${state.points.length} mark${state.points.length > 1 ? "s" : ""}`);
}

async function makeTemplate() {
  fail("point-error");
  const name = $("called").value.trim().toLowerCase().replace(/[^a-z0-9_-]+/g, "-").replace(/^[-_]+|-+$/g, "") || "thing";
  $("make").disabled = true;
  $("point-message").textContent = "Searching…";
  try {
    if (!(await send())) return;
    const json = { video: state.video, still: state.still, points: state.points, name };
    await call("templates", { method: "POST", json });
    if (!state.own.includes(name)) state.own.push(name);
    state.hide.add(name);
    showParts();
    showPicture(`videos/${state.video}/heat.png?${Date.now()}`);
    $("point-message").textContent = `“${name}” is chosen. Bright is alike; what lies within a line is hidden. Click again to change it.`;
    ready();
  } catch (error) {
    fail("point-error", error);
    $("point-message").textContent = "";
  } finally {
    $("make").disabled = false;
  }
}

// ---------------------------------------------------------------- the work

const settings = () => JSON.stringify([state.label, state.choice, ...(chosen() && chosen().picks ? [[...state.hide], $("faces").checked] : [])]);

function ready() {
  const working = state.job !== null;
  const nothing = chosen() && chosen().picks && state.hide.size === 0;
  const again = state.settled === settings();
  $("go").disabled = !state.file || working || state.busy || nothing;
  $("go").textContent = again ? "Anonymize again" : "Anonymize";
  $("go").classList.toggle("primary", !again);  // the download is the thing to do then
  $("go-note").textContent = working ? "Your video is being worked on." : state.busy ? "Your video is on its way."
    : !state.file ? "Choose a video first." : nothing ? "Choose something to hide." : "Your video is deleted when the work ends; the result is yours to download.";
}

function clearResult() {
  clearTimeout(state.expiry);
  state.settled = null;
  for (const id of ["done", "transport", "working"]) $(id).hidden = true;
  fail("job-error");
  still("before", null);
  still("after", null);
  const after = $("after-video");
  after.pause();
  after.removeAttribute("src");
  after.load();
  after.hidden = true;
  $("before-video").pause();
  empty("after", "What comes out appears here");
}

async function start(event) {
  event.preventDefault();
  if ($("go").disabled) return;
  clearResult();
  if (!(await send())) return;
  const json = { task: "anonymize", video: state.video, choice: state.choice, hide: [...state.hide], faces: $("faces").checked };
  try {
    const job = await call("jobs", { method: "POST", json });
    state.video = null;  // the job has it now, and deletes it
    sessionStorage.setItem("job", job.job);
    state.command = command(json);
    $("viewer").scrollIntoView({ block: "nearest" });
    follow(job.job);
  } catch (error) {
    if (error.gone) state.video = null;
    fail("job-error", error);
  }
}

function command({ choice, hide, faces }) {
  const method = state.choices.find((c) => c.key === choice);
  const picked = method.picks ? ` --hide ${hide.join(",")} --also ${faces ? "face" : "none"}` : "";
  return `veil anonymize VIDEO -o OUTPUT.mp4 --method ${method.method}${picked} --report REPORT.json`;
}

async function follow(id) {
  state.job = id;
  ready();
  $("working").hidden = false;
  $("heat").hidden = true;
  let shown = null;
  while (state.job === id) {
    let job;
    try {
      job = await call(`jobs/${id}`);
    } catch (error) {
      end();
      fail("job-error", error);
      return;
    }
    if (job.state === "waiting" || job.state === "running") {
      progress(job, "work-message", "work-left", "bar");
      if (job.preview !== null && job.preview !== shown) {
        shown = job.preview;
        $("heat").hidden = !job.heat;
        showPreview(id, shown);
      }
    } else {
      end();
      if (job.state === "done") finish(id, job);
      else {
        clearResult();
        if (job.state === "failed") fail("job-error", new Error(sentence(job.error)));
        else { $("job-error").textContent = ""; empty("after", "Cancelled. Everything of it was deleted."); announce("Cancelled."); }
      }
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, 350));
  }
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function progress(job, message, left, bar) {
  const element = $(bar);
  if (job.state === "waiting") {
    $(message).textContent = job.before > 1 ? `${job.before - 1} before yours in the queue` : "Next in the queue";
    $(left).textContent = "";
    element.removeAttribute("value");
    return;
  }
  $(message).textContent = job.message === "loading" || !job.message ? "Loading…" : sentence(job.message);
  if (job.total > 1) {  // of one piece, nothing is known until it is done
    element.value = job.done / job.total;
    // An audit has several steps, and how long the next ones take is not known.
    const share = `${job.task === "audit" ? "This step: " : ""}${Math.round((100 * job.done) / job.total)} %`;
    $(left).textContent = job.left === null ? share : `${share}, ${span(job.left)} left`;
  } else {
    element.removeAttribute("value");
    $(left).textContent = job.done && !job.total ? `${job.done} frames` : "";
  }
}

function still(which, source) {
  const image = $(`${which}-still`);
  image.hidden = !source;
  if (source) image.src = source; else image.removeAttribute("src");
}

// Both pictures of a moment are shown together or not at all.
function showPreview(id, number) {
  state.preview = number;
  const second = !$("heat").hidden && $("heat").getAttribute("aria-pressed") === "true" ? "heat" : "after";
  const load = (which) => new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image.src);
    image.onerror = reject;
    image.src = `jobs/${id}/${which}-${number}.jpg`;
  });
  Promise.all([load("before"), load(second)]).then(([before, after]) => {
    if (state.job !== id || state.preview !== number) return;
    still("before", before);
    still("after", after);
  }).catch(() => {});
}

function end() {
  state.job = null;
  sessionStorage.removeItem("job");
  $("working").hidden = $("heat").hidden = true;
  ready();
}

function finish(id, job) {
  const result = job.result;
  still("before", null);
  still("after", null);
  const after = $("after-video");
  after.src = `jobs/${id}/anonymized.mp4`;
  after.hidden = false;
  $("transport").hidden = false;
  $("done").hidden = false;
  $("sentence").textContent = result.sentence;
  $("sentence").classList.toggle("warn", result.warn);
  $("save").href = `jobs/${id}/anonymized.mp4?save`;
  $("save").textContent = `Download the video (${size(result.bytes)})`;
  $("save-report").href = `jobs/${id}/report.json?save`;
  $("keep").textContent = `It is kept here for ${Math.round(job.keep / 60) || 1} minutes. Your video is deleted already.`;
  $("forget").onclick = async () => { await call(`jobs/${id}`, { method: "DELETE" }).catch(() => {}); clearResult(); ready(); empty("after", "Deleted."); announce("Deleted."); };
  $("cli").textContent = state.command || "";
  $("cli").closest("details").hidden = !state.command;
  $("why-box").hidden = !result.why.length;
  const order = ["sheet.png", "combined.png", "coverage.png"];
  const pictures = [...order.filter((name) => result.why.includes(name)), ...result.why.filter((name) => !order.includes(name))];
  const titles = { "sheet.png": "everything", "combined.png": "what was hidden", "coverage.png": "over time" };
  const show = (name) => {
    $("why").src = `jobs/${id}/${name}`;
    $("why").alt = `Heat map: ${titles[name] || name.replace(".png", "")}`;
    for (const button of $("why-names").children) button.setAttribute("aria-pressed", String(button.value === name));
  };
  $("why-names").replaceChildren(...pictures.map((name) => {
    const button = make("button", { type: "button", class: "chip", value: name }, titles[name] || name.replace(".png", ""));
    button.onclick = () => show(name);
    return button;
  }));
  if (pictures.length) show(pictures[0]);
  clearTimeout(state.expiry);
  state.expiry = setTimeout(() => { clearResult(); ready(); empty("after", "The result was deleted, as its time was over."); }, 1000 * job.keep);
  state.settled = settings();
  ready();
  announce("Done.");
}

// ---------------------------------------------------------------- both videos as one

const both = () => [$("before-video"), $("after-video")].filter((video) => !video.hidden && video.src);

function toggle() {
  const after = $("after-video");
  if (after.paused) {
    if (after.ended) for (const video of both()) video.currentTime = 0;
    for (const video of both()) video.play().catch(() => {});
  } else for (const video of both()) video.pause();
}

function together() {
  const after = $("after-video"), before = $("before-video");
  if (!before.hidden && before.src && Math.abs(before.currentTime - after.currentTime) > 0.06 && !before.seeking) before.currentTime = after.currentTime;
}

function tick() {
  const after = $("after-video");
  if (!after.hidden && after.duration) {
    if (document.activeElement !== $("seek") || !after.paused) $("seek").value = after.currentTime;
    $("clock").textContent = `${clock(after.currentTime)} / ${clock(after.duration)}`;
    if (!after.paused) together();
  }
  requestAnimationFrame(tick);
}

// ---------------------------------------------------------------- the audit

async function startAudit() {
  fail("audit-error");
  const choices = [...$("audit-choices").querySelectorAll("input:checked")].map((input) => input.value);
  $("audited").hidden = true;
  try {
    const job = await call("jobs", { method: "POST", json: { task: "audit", choices, hide: [...state.hide], faces: $("faces").checked } });
    sessionStorage.setItem("audit", job.job);
    followAudit(job.job);
  } catch (error) {
    fail("audit-error", error);
  }
}

async function followAudit(id) {
  state.audit = id;
  $("audit").disabled = true;
  $("auditing").hidden = false;
  try {
    for (;;) {
      const job = await call(`jobs/${id}`);
      if (job.state === "done") { showAudit(id, job); break; }
      if (job.state === "failed") throw new Error(sentence(job.error));
      if (job.state === "cancelled") { announce("The audit was cancelled."); break; }
      const [name, rest] = named(job.message);
      progress({ ...job, message: name ? `${name}: ${rest}` : rest }, "audit-message", "audit-left", "audit-bar");
      await new Promise((resolve) => setTimeout(resolve, 700));
    }
  } catch (error) {
    if (!error.gone) fail("audit-error", error);
  } finally {
    state.audit = null;
    sessionStorage.removeItem("audit");
    $("audit").disabled = false;
    $("auditing").hidden = true;
  }
}

// A message of an audit begins with the specification of a method: the page shows its title instead.
function named(message) {
  const known = [...state.choices].sort((a, b) => b.method.length - a.method.length);
  const choice = known.find(({ method, picks }) => message.startsWith(`${method}:${picks ? "hide=" : " "}`));
  const at = message.indexOf(": ");
  return choice ? [choice.title, message.slice(at + 2)] : ["", message];
}

function showAudit(id, job) {
  const summary = job.result.summary;
  $("verdicts").replaceChildren(...summary.map((message) => {
    const [name, rest] = named(message);
    return make("p", {}, make("strong", {}, name ? `${name}. ` : ""), rest);
  }));
  $("audit-page").src = `jobs/${id}/audit.html${summary.length > 1 ? "#trade-off" : ""}`;
  $("audit-save").href = `jobs/${id}/audit.html?save`;
  $("audit-data").href = `jobs/${id}/audit.json?save`;
  $("audited").hidden = false;
  announce("The audit is done.");
}

// ---------------------------------------------------------------- the beginning

function listen() {
  $("file").onchange = () => { const file = $("file").files[0]; if (file) choose(file, file.name); $("file").value = ""; };
  $("sample").onclick = useSample;
  $("camera").onclick = openCamera;
  $("record").onclick = record;
  $("no-camera").onclick = () => closeCamera();
  $("change").onclick = () => { clearResult(); unchoose(); $("file").focus(); };
  for (const place of [document.body]) {
    place.ondragover = (event) => { event.preventDefault(); $("drop").classList.add("over"); };
    place.ondragleave = (event) => { if (!event.relatedTarget) $("drop").classList.remove("over"); };
    place.ondrop = (event) => {
      event.preventDefault();
      $("drop").classList.remove("over");
      const file = event.dataTransfer.files[0];
      if (file && state.job === null && !state.busy) { unchoose(); choose(file, file.name); }
    };
  }
  const picture = $("picture");
  picture.onclick = (event) => {
    const box = picture.getBoundingClientRect();
    if ($("point-message").textContent) { state.points = []; showStills(); }
    mark((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  };
  picture.onkeydown = (event) => {
    const step = event.shiftKey ? 0.1 : 0.02;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (moves[event.key]) state.cross = state.cross.map((v, axis) => Math.min(0.999, Math.max(0, v + moves[event.key][axis])));
    else if (event.key === "Enter") mark(...state.cross);
    else if (event.key === "Backspace") state.points.pop();
    else return;
    event.preventDefault();
    showMarks();
  };
  $("make").onclick = makeTemplate;
  $("called").onkeydown = (event) => { if (event.key === "Enter") { event.preventDefault(); makeTemplate(); } };
  $("clear").onclick = () => { state.points = []; showStills(); };
  $("faces").onchange = ready;
  $("setup").onsubmit = start;
  $("cancel").onclick = async () => { if (state.job) await call(`jobs/${state.job}`, { method: "DELETE" }).catch((error) => fail("job-error", error)); };
  $("audit").onclick = startAudit;
  $("audit-cancel").onclick = async () => { if (state.audit) await call(`jobs/${state.audit}`, { method: "DELETE" }).catch((error) => fail("audit-error", error)); };
  $("heat").onclick = () => {
    $("heat").setAttribute("aria-pressed", String($("heat").getAttribute("aria-pressed") !== "true"));
    if (state.job) showPreview(state.job, state.preview);
  };
  $("play").onclick = toggle;
  $("seek").oninput = () => { for (const video of both()) video.currentTime = Number($("seek").value); };
  const after = $("after-video");
  after.onloadedmetadata = () => { $("seek").max = after.duration; $("seek").value = 0; for (const video of both()) video.currentTime = 0; };
  after.onplay = () => { $("play").classList.add("playing"); $("play").setAttribute("aria-label", "Pause both"); };
  after.onpause = () => { $("play").classList.remove("playing"); $("play").setAttribute("aria-label", "Play both"); together(); };
  after.onerror = () => { if (after.getAttribute("src")) fail("job-error", new Error("This browser cannot play the result; download it instead.")); };
  for (const screen of ["before", "after"]) $(screen).onclick = () => { if (!$("transport").hidden) toggle(); };
  $("forget-all").onclick = async () => { await call("forget", { method: "POST" }).catch(() => {}); end(); clearResult(); unchoose(); $("audited").hidden = true; announce("Everything of yours was deleted."); };
  requestAnimationFrame(tick);
}

async function begin() {
  listen();
  try {
    Object.assign(state, await call("choices"));
  } catch (error) {
    fail("video-error", error);
    return;
  }
  state.choice = state.choices[0].key;
  const { bytes, seconds } = state.limits;
  $("limits").textContent = `MP4, MOV, WebM, MKV or AVI, up to ${Math.round(bytes / 2 ** 20)} MB and ${length(seconds)}`;
  showChoices();
  showParts();
  pickChoice(state.choice);
  const [job, audit] = [sessionStorage.getItem("job"), sessionStorage.getItem("audit")];
  if (job) follow(job);
  if (audit) followAudit(audit);
}

begin();
