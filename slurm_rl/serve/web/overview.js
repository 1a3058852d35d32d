// The machine at a glance: counts, GPUs by type, waits by partition, and what the policy has done.
import {ask, bar, card, count, make, percent, row, short, span, table, tile} from "./lib.js";

const SHOWN = [["mean_wait", "mean wait", span], ["p95_wait", "95% of waits below", span],
  ["max_wait", "longest wait", span], ["mean_bsld", "mean bounded slowdown", short], ["user_bsld", "… by user", short]];

export async function overview() {
  const said = await ask("/v1/overview");
  const made = said.changes || {}, written = made.applied || 0;
  const tiles = make("section", [
    tile("pending", count(said.pending), "pending"), tile("running", count(said.running), "running"),
    tile("policy", said.policy, "policy"), tile("nodes idle / in use / down", ["idle", "used", "down"].map(k => k === "used" ?
      (said.nodes?.mixed || 0) + (said.nodes?.full || 0) : said.nodes?.[k] || 0).join(" / ")),
    tile(said.mode === "enforce" ? "SiteFactors written in 24 h" : "would have been written in 24 h",
      count(said.mode === "enforce" ? written : made.shadow || 0)),
    tile("health", said.health.trouble || "good", "health"),
    tile("forecasts that held this week", said.forecasts.forecasts ?
      `${percent(said.forecasts.held)} of ${count(said.forecasts.forecasts)}` : "none yet", "skill"),
  ], "tiles");
  const gpus = (said.gpus || []).map(g => row([[g.type], [bar([[g.used, "used"], [g.idle, ""], [g.down, "down"]],
    `${g.used} in use, ${g.idle} idle, ${g.down} down`)], [count(g.used), "n"], [count(g.idle), "n"], [count(g.down), "n"]]));
  const parts = (said.partitions || []).map(p => row([[make("a", p.name, "", {href: "#/queue/" + encodeURIComponent(p.name)})],
    [count(p.pending), "n"], [count(p.running), "n wide"], [p.pending ? span(p.now.median) : "–", "n"],
    [p.pending ? span(p.now.p95) : "–", "n wide"], [span(p.week.median), "n"], [span(p.week.p95), "n wide"]]));
  return [tiles, make("div", [
    card("GPUs by type", gpus.length ? table([["type"], [""], ["in use", "n"], ["idle", "n"], ["down", "n"]], gpus) :
      make("p", "No node of this cluster has a GPU.")),
    card("Partitions", table([["partition"], ["pending", "n"], ["running", "n wide"], ["waited so far", "n"], ["95%", "n wide"],
      ["this week", "n"], ["95%", "n wide"]], parts))], "two"), effect(said.shadow)];
}

function effect(report) {
  if (!report) return card("Shadow against actual", make("p",
    ["Not computed yet: ", make("code", "slurm-rl shadow-report"), " replays the shadow period both ways; its result stands here."], "soft"));
  const rows = SHOWN.filter(([key]) => report.slurm[key] != null).map(([key, label, words]) => {
    const [a, b] = [report.slurm[key], report.slurm_rl[key]], change = a ? b / a - 1 : 0;
    return row([[label], [words(a), "n"], [words(b), "n"], [`${change > 0 ? "+" : "−"}${Math.abs(100 * change).toFixed(1)}%`,
      "n " + (change < 0 ? "up" : change > 0 ? "down" : "")]]);
  });
  return card(`Shadow against actual: ${count(report.jobs)} jobs, ${report.policy}`,
    table([["replayed"], ["Slurm alone", "n"], ["with slurm-rl", "n"], ["change", "n"]], rows));
}
