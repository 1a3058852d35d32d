"""The dashboard: one self-contained page that reads /v1/queue, and explains a job when its row is chosen."""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>slurm-rl</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style>
:root { color-scheme: light dark; --page: light-dark(#f6f7f9, #0e1116); --card: light-dark(#fff, #171b22);
  --ink: light-dark(#1a1f27, #e4e8ee); --soft: light-dark(#5a6472, #98a3b3); --line: light-dark(#dfe3e9, #2a303a);
  --accent: light-dark(#1f63c6, #6ba4f8); --good: light-dark(#1b7f4b, #4cc38a); --bad: light-dark(#b3261e, #f2857d) }
* { box-sizing: border-box }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0; background: var(--page); color: var(--ink) }
main { max-width: 78rem; margin: 0 auto; padding: 1.25rem 1rem 3rem }
header { display: flex; align-items: center; gap: .75rem; flex-wrap: wrap; margin-bottom: 1rem }
h1 { font-size: 1.25rem; margin: 0 } h2 { font-size: 1rem; margin: 0 0 .4rem }
.badge { padding: .1rem .6rem; border-radius: 1rem; font-weight: 600; font-size: .85rem; color: #fff;
  background: #6b7280 }
.badge.enforce { background: #1b7f4b } .badge.shadow { background: #4457c8 }
#problem { color: var(--bad); margin: 0 0 .75rem } #problem:empty { display: none }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem }
.tiles div, .card { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: .65rem .85rem }
.tiles span { display: block; color: var(--soft); font-size: .8rem }
.tiles b { font-size: 1.15rem; font-weight: 600; overflow-wrap: anywhere }
.card { margin-top: .75rem; overflow-x: auto }
.bar { display: flex; justify-content: space-between; gap: 1rem; align-items: center; flex-wrap: wrap }
input { font: inherit; color: inherit; background: var(--page); border: 1px solid var(--line); border-radius: .4rem;
  padding: .25rem .6rem; min-width: 14rem }
table { border-collapse: collapse; width: 100%; margin-top: .5rem; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .34rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap }
th { font-weight: 600; font-size: .8rem; color: var(--soft) }
td.n, th.n { text-align: right } td.why { white-space: normal; min-width: 16rem; color: var(--soft) }
tbody tr { cursor: pointer } tbody tr:hover, tbody tr:focus { background: var(--page); outline: none }
#used tr, #was tr, #parts tr { cursor: default } tr.alone td { color: var(--soft) }
tr.promoted td:first-child::after { content: " ↑"; color: var(--good) }
.up { color: var(--good) } .down { color: var(--bad) } ul { margin: .2rem 0 .6rem; padding-left: 1.2rem }
</style></head><body><main>
<header><h1>slurm-rl</h1><span class="badge" id="mode"></span></header>
<p id="problem" role="status"></p>
<form id="ask" hidden><label>Token <input id="token" type="password" autocomplete="off"></label></form>
<section class="tiles"><div><span>cluster</span><b id="cluster">–</b></div><div><span>policy</span><b id="policy">–</b>
</div><div><span>pending</span><b id="pending">–</b></div><div><span>most a SiteFactor may be</span><b id="bound">–</b>
</div><div hidden><span>deferred</span><b id="later"></b></div>
<div><span>as of</span><b id="time">–</b></div></section>
<section class="card" id="auto" hidden><h2>Policies and the promise</h2>
<table><thead><tr><th>partition</th><th>policy</th><th>why</th><th>promise</th></tr></thead><tbody id="parts"></tbody>
</table></section>
<section class="card" id="chosen" hidden aria-live="polite"></section>
<section class="card"><div class="bar"><h2 id="shown">Queue</h2>
<input id="filter" type="search" placeholder="user, name or job id" aria-label="filter"></div>
<table><thead><tr><th class="n">#</th><th class="n">job</th><th>user</th><th>name</th><th class="n">GPUs</th>
<th class="n">waits</th><th class="n">runs for</th><th class="n">starts in</th><th class="n">SiteFactor</th>
<th>why</th></tr></thead><tbody id="rows"></tbody></table><button id="more" hidden>more</button></section>
<section class="card" id="running" hidden><h2>Running jobs, the idlest first</h2>
<table><thead><tr><th class="n">job</th><th>user</th><th>type</th><th class="n">GPUs used</th><th class="n">mean</th>
<th class="n">95% below</th><th class="n">memory</th><th class="n">GPU time idle</th><th class="n">energy</th></tr>
</thead><tbody id="used"></tbody></table></section>
<section class="card" id="ended" hidden><h2>Ended within a day, the idlest first</h2>
<table><thead><tr><th class="n">job</th><th>user</th><th>type</th><th class="n">GPUs used</th><th class="n">mean</th>
<th class="n">95% below</th><th class="n">memory</th><th class="n">GPU time idle</th><th class="n">energy</th></tr>
</thead><tbody id="was"></tbody></table></section></main>
<script>
const $ = id => document.getElementById(id);
const span = s => s == null ? "" : s < 90 ? Math.round(s) + " s" : s < 5400 ? Math.round(s / 60) + " min" :
  s < 172800 ? (s / 3600).toFixed(1) + " h" : (s / 86400).toFixed(1) + " d";
const make = (tag, text, kind) => Object.assign(document.createElement(tag),
  {textContent: text ?? "", className: kind || ""});
let said = null, questions = 0, limit = 200;
async function get(path) {
  const token = sessionStorage.getItem("token");
  const answer = await fetch(path, {headers: token ? {Authorization: "Bearer " + token} : {}});
  $("ask").hidden = answer.status !== 401;
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.detail);
  return content;
}
function row(job) {
  const tr = make("tr", "", job.rank < 0 ? "alone" : job.promoted ? "promoted" : "");
  const until = t => Math.max(0, t - said.time);
  const start = job.expected_start == null ? "" : job.expected_range[1] - job.expected_range[0] < 60 ?
    span(until(job.expected_start)) : span(until(job.expected_range[0])) + " – " + span(until(job.expected_range[1]));
  const factor = job.site_factor == null ? "" : job.rank < 0 || job.site_factor === job.wanted ? job.site_factor :
    job.site_factor + " → " + job.wanted;
  const why = job.why.replace(/^\\d+ of \\d+: /, "");
  tr.append(make("td", job.rank < 0 ? "" : job.rank + 1, "n"), make("td", job.job_id, "n"), make("td", job.user),
    make("td", job.name), make("td", job.gpus, "n"), make("td", span(job.wait), "n"),
    make("td", job.rank < 0 ? "" : span(job.estimate), "n"), make("td", start, "n"), make("td", factor, "n"),
    make("td", why, "why"));
  tr.tabIndex = 0;
  tr.onclick = () => explain(job.job_id);
  tr.onkeydown = event => { if (event.key === "Enter") explain(job.job_id) };
  return tr;
}
function draw() {
  $("rows").replaceChildren(...said.jobs.map(row));
  const found = said.matching < said.pending ? `${said.matching} of ${said.pending} found` : `${said.pending}`;
  $("shown").textContent = said.jobs.length < said.pending ? `Queue, ${said.jobs.length} shown, ${found}` : "Queue";
  $("more").hidden = said.jobs.length >= said.matching;
}
async function explain(id) {
  const box = $("chosen");
  box.hidden = false;
  try {
    const job = await get(`/v1/jobs/${id}/explain`);
    const list = make("ul");
    for (const f of job.features) {
      const timed = ["wait", "run time"].includes(f.feature);
      const [value, usual] = [f.value, f.usual].map(v => timed ? span(v) : String(+v.toPrecision(3)));
      list.append(make("li", `${f.feature} ${value}, usual ${usual}: ` + (f.places ?
        `${f.places > 0 ? "up" : "down"} ${Math.abs(f.places)}` : "no place"), f.places > 0 ? "up" :
        f.places < 0 ? "down" : ""));
    }
    const moves = make("ul");
    for (const m of job.what_would_move_it) moves.append(make("li", `with ${m.what}: place ${m.rank}`));
    const head = job.ordered ? `Job ${id}: place ${job.rank} of ${job.of}` : `Job ${id} is left to Slurm: ${job.why}`;
    box.replaceChildren(make("h2", head));
    if (list.children.length) box.append(make("div", "What puts it there"), list);
    if (moves.children.length) box.append(make("div", "What would move it"), moves);
  } catch (error) { box.replaceChildren(make("h2", error.message)) }
}
async function chosen() {
  const found = await get("/v1/auto");
  const why = {}, parts = new Set(Object.keys(found.chosen));
  for (const c of found.choices) for (const p of c.partitions) why[p] = c.why;
  const held = {};
  for (const g of found.promise.groups) if (g.kind === "partition") { held[g.name] = g; parts.add(g.name) }
  $("auto").hidden = !parts.size;
  $("parts").replaceChildren(...[...parts].sort().map(p => {
    const tr = make("tr"), g = held[p];
    tr.append(make("td", p), make("td", found.chosen[p] || said.policy), make("td", why[p] || "", "why"),
      make("td", !g ? "" : g.withheld >= 1 ? "handed back to Slurm" : g.withheld > 0 ?
        `${Math.round(100 * g.withheld)}% of influence withheld` : "kept", g && g.withheld > 0 ? "down" : ""));
    return tr;
  }));
}
async function measured(card, rows, query) {
  const {jobs} = await get(`/v1/measured?limit=50${query}`);
  const percent = p => p == null ? "" : Math.round(p) + "%";
  $(card).hidden = !jobs.length;
  $(rows).replaceChildren(...jobs.map(m => {
    const tr = make("tr");
    tr.append(make("td", m.job_id, "n"), make("td", m.user), make("td", m.gpu_type),
      make("td", `${m.gpus_used} of ${m.gpus}`, "n"), make("td", percent(m.util_mean), "n"),
      make("td", percent(m.util_p95), "n"), make("td", (m.memory_peak_mb / 1024).toFixed(1) + " GB", "n"),
      make("td", span(60 * m.idle_gpu_minutes), "n"), make("td", (m.energy_j / 3.6e6).toFixed(2) + " kWh", "n"));
    return tr;
  }));
}
async function refresh() {
  try {
    const asked = ++questions;
    const content = await get(`/v1/queue?limit=${limit}&match=${encodeURIComponent($("filter").value.trim())}`);
    if (asked < questions) return;  // a later question is under way
    said = content;
    for (const name of ["cluster", "policy", "pending", "mode"]) $(name).textContent = said[name];
    $("bound").textContent = "±" + said.bound;
    const {jobs, made, success_rate} = said.deferrals;
    $("later").parentElement.hidden = !made;
    $("later").textContent = `${jobs} now, ${made} in all` +
      (success_rate == null ? "" : `, ${Math.round(100 * success_rate)}% got what they waited for`);
    $("mode").className = "badge " + said.mode;
    $("time").textContent = new Date(said.time * 1000).toLocaleTimeString();
    $("problem").textContent = "";
    draw();
    await chosen();
    await measured("running", "used", "");
    await measured("ended", "was", "&ended=86400");
  } catch (error) { $("problem").textContent = error.message }
}
let pause;
$("filter").oninput = () => { clearTimeout(pause); limit = 200; pause = setTimeout(refresh, 200) };
$("more").onclick = () => { limit = Math.min(limit + 200, 1000); refresh() };
$("ask").onsubmit = event => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value.trim());
  refresh();
};
refresh();
setInterval(refresh, 5000);
</script></body></html>
"""
