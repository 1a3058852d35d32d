// Chooses the view by the address, asks for a token where one is needed, and draws anew at each tick.
import {$, ask, make, Refused} from "./lib.js";
import {overview} from "./overview.js";
import {queue} from "./queue.js";
import {nodes} from "./nodes.js";
import {job} from "./job.js";
import {decisions} from "./decisions.js";
import {policy} from "./policy.js";
import {use} from "./use.js";

const VIEWS = {overview: ["Overview", overview], queue: ["Queue", queue], nodes: ["Nodes", nodes],
  decisions: ["Decisions", decisions], use: ["GPU use", use], policy: ["Policy", policy], job: ["", job]};
let shown = "", turn = 0;

function place() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return VIEWS[name] ? [name, rest.join("/")] : ["overview", ""];
}

export async function draw() {
  const [name, rest] = place(), mine = ++turn, view = $("view");
  const address = name + "/" + rest;
  $("nav").replaceChildren(...Object.entries(VIEWS).filter(([, [title]]) => title).map(([key, [title]]) =>
    make("a", title, "", {href: "#/" + key, "aria-current": key === name ? "page" : null})));
  try {
    const fresh = address !== shown;
    const content = await VIEWS[name][1](rest, {fresh, redraw: draw, still: () => mine === turn});
    if (mine !== turn) return;  // another view was asked for meanwhile
    if (content) view.replaceChildren(...[content].flat());
    document.title = (VIEWS[name][0] || "Job " + rest) + " · slurm-rl";
    shown = address;
    $("problem").textContent = "";
    $("ask").hidden = true;
  } catch (error) {
    if (mine !== turn) return;
    $("ask").hidden = error.status !== 401;
    $("problem").textContent = error.message;
    if (address !== shown) view.replaceChildren();
    if (!(error instanceof Refused)) throw error;
  }
}

function head(said) {
  $("mode").textContent = said.mode;
  $("mode").className = "badge " + said.mode;
  $("cluster").textContent = said.cluster;
  $("fresh").textContent = "as of " + new Date(said.time * 1000).toLocaleTimeString(undefined, {hourCycle: "h23"});
}

const pause = seconds => new Promise(done => setTimeout(done, 1000 * seconds));

async function follow() {
  for (let wait = 1;; wait = Math.min(2 * wait, 30)) {
    try {
      const reader = (await ask("/v1/events", true)).pipeThrough(new TextDecoderStream()).getReader();
      let rest = "", first = true;
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const events = (rest + part.value).split("\n\n");
        rest = events.pop();
        for (const event of events) {
          const data = event.match(/^event: tick\ndata: (.*)$/m);
          if (!data) continue;
          head(JSON.parse(data[1]));
          wait = 1;
          if (!first && !document.hidden) await draw();
          first = false;
        }
      }
    } catch (error) {
      if (error.status === 503) await draw();  // no room for another stream: ask now and then
    }
    await pause(wait);
  }
}

$("ask").onsubmit = event => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value.trim());
  draw();
};
$("find").onsubmit = event => {
  event.preventDefault();
  const wanted = $("findjob").value.trim();
  if (wanted) location.hash = "#/job/" + encodeURIComponent(wanted);
};
document.addEventListener("keydown", event => {
  if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const names = Object.keys(VIEWS).filter(name => VIEWS[name][0]);
  if (event.key === "/") { event.preventDefault(); ($("filter") || $("findjob")).focus(); }
  else if (names[event.key - 1]) location.hash = "#/" + names[event.key - 1];
});
window.addEventListener("hashchange", () => draw().then(() => $("view").focus()));
document.addEventListener("visibilitychange", () => { if (!document.hidden) draw(); });
draw();
follow();
