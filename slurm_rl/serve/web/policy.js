// The policy in charge, deferrals, and which models were promoted, refused or rolled back.
import {ask, card, count, make, moment, percent, row, table, tile} from "./lib.js";

export async function policy() {
  const [said, queue, auto] = await Promise.all([ask("/v1/models"), ask("/v1/queue?limit=1").catch(() => null), ask("/v1/auto")]);
  const tiles = [tile("in charge", said.policy), tile("model", said.model?.slice(0, 12) || "none: a formula")];
  const later = queue?.deferrals;
  if (queue) tiles.push(tile("most a SiteFactor may be", "±" + count(queue.bound)));
  if (later?.made) tiles.push(tile("deferred now", count(later.jobs)), tile("deferrals in all", count(later.made)),
    tile("… that got what they waited for", percent(later.success_rate)));
  const rows = said.promotions.map(p => row([[moment(p.time)], [p.action], [p.model], [p.who, "wide"], [p.hash.slice(0, 12), "wide"], [gate(p.gate), "long"]]));
  return [make("section", tiles, "tiles"), ...chosen(auto, said.policy), card("Models and promotions", rows.length ?
    table([["when"], ["what"], ["model"], ["by", "wide"], ["digest", "wide"], ["gate", "long"]], rows) :
    make("p", ["No model was promoted yet: ", make("code", "slurm-rl models promote NAME"), " replays your history first."], "soft"))];
}

function chosen(auto, usual) {
  const why = {}, held = {}, names = new Set(Object.keys(auto.chosen));
  for (const choice of auto.choices) for (const name of choice.partitions) why[name] = choice.why;
  for (const group of auto.promise.groups) if (group.kind === "partition") { held[group.name] = group; names.add(group.name); }
  const kept = group => !group ? "" : group.withheld >= 1 ? "handed back to Slurm" : group.withheld > 0 ?
    `${Math.round(100 * group.withheld)}% of influence withheld` : "kept";
  const rows = [...names].sort().map(name => row([[name], [auto.chosen[name] || usual], [why[name], "long"],
    [kept(held[name]), held[name]?.withheld > 0 ? "down" : ""]]));
  return rows.length ? [card("Partitions and the promise", table([["partition"], ["policy"], ["why", "long"], ["promise"]], rows))] : [];
}

function gate(text) {
  try {
    const found = JSON.parse(text);
    return (found.objections || []).join("; ") || (found.passed === false ? "refused" : "passed");
  } catch { return text; }
}
