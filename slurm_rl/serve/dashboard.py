"""The dashboard: one self-contained page that reads /v1/queue."""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>slurm-rl</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --line: #8884; --soft: #8888; --accent: #2a7de1 }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
h1 { font-size: 1.3rem; margin: 0 } header { display: flex; gap: 1.5rem; align-items: baseline; flex-wrap: wrap }
header span { color: var(--soft) } header b { color: var(--accent) }
table { border-collapse: collapse; width: 100%; margin-top: 1rem; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap }
th { font-weight: 600 } td.n, th.n { text-align: right } td.why { white-space: normal; color: var(--soft) }
tr.alone td { color: var(--soft) } #problem { color: #c33 }
</style></head><body>
<header><h1>slurm-rl</h1><span>cluster <b id="cluster"></b></span><span>mode <b id="mode"></b></span>
<span>policy <b id="policy"></b></span><span>pending <b id="pending"></b></span>
<span>as of <b id="time"></b></span></header>
<p id="problem" role="status"></p>
<table><thead><tr><th class="n">#</th><th class="n">job</th><th>user</th><th>name</th><th class="n">GPUs</th>
<th class="n">waits</th><th class="n">estimate</th><th class="n">starts in</th><th class="n">SiteFactor</th>
<th>why</th></tr>
</thead><tbody id="rows"></tbody></table>
<script>
const span = s => s == null ? "" : s < 90 ? Math.round(s) + " s" : s < 5400 ? Math.round(s / 60) + " min" :
  s < 172800 ? (s / 3600).toFixed(1) + " h" : (s / 86400).toFixed(1) + " d";
const show = (id, text) => document.getElementById(id).textContent = text;
async function refresh() {
  try {
    const answer = await fetch("/v1/queue?limit=200");
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.detail);
    for (const name of ["cluster", "mode", "policy", "pending"]) show(name, said[name]);
    show("time", new Date(said.time * 1000).toLocaleTimeString());
    const rows = said.jobs.map(job => {
      const row = document.createElement("tr");
      if (job.rank < 0) row.className = "alone";
      const start = job.expected_start == null ? null : Math.max(0, job.expected_start - said.time);
      const factor = job.site_factor == null ? "" :
        job.site_factor === job.wanted || job.rank < 0 ? job.site_factor : job.site_factor + " → " + job.wanted;
      const cells = [[job.rank < 0 ? "" : job.rank + 1, "n"], [job.job_id, "n"], [job.user], [job.name],
        [job.gpus, "n"], [span(job.wait), "n"], [job.rank < 0 ? "" : span(job.estimate), "n"], [span(start), "n"],
        [factor, "n"], [job.why, "why"]];
      for (const [text, kind] of cells) {
        const cell = document.createElement("td");
        cell.textContent = text;
        if (kind) cell.className = kind;
        row.append(cell);
      }
      return row;
    });
    document.getElementById("rows").replaceChildren(...rows);
    show("problem", "");
  } catch (error) { show("problem", error.message) }
}
refresh();
setInterval(refresh, 5000);
</script></body></html>
"""
