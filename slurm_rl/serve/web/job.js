// One job: where it stands, why, when it may start, what would move it, what was written to it.
import {ask, card, clock, count, make, many, moment, row, short, span, table} from "./lib.js";

const TIMED = ["wait", "run time"];

export async function job(id) {
  const said = await ask(`/v1/jobs/${encodeURIComponent(id)}/explain`);
  return said.job ? pending(id, said) : measured(id, said);
}

const facts = rows => make("dl", rows.filter(([, v]) => v != null && v !== "").flatMap(([k, v]) => [make("dt", k), make("dd", v)]));

function pending(id, said) {
  const j = said.job, start = said.expected_start, at = start?.range || [];
  const about = [["of", `${j.user}${j.account ? ", account " + j.account : ""}`], ["name", j.name], ["partition", j.partition],
    ["asks for", `${many(j.gpus, "GPU")} on ${many(j.nodes, "node")} for ${span(j.time_limit)}`], ["waits", span(j.wait)]];
  if (said.ordered) about.push(
    ["place", `${said.rank} of ${said.of}, by ${said.policy.name}`],
    ["expected to run", said.estimate ? `${span(said.estimate.seconds)} (${said.estimate.range.map(span).join(" to ")})` : null],
    ["expected start", start?.time ? `${clock(start.time)} (four of five futures: ${at.map(clock).join(" to ")})` : "not known"],
    ["Slurm itself expects", start?.by_slurm ? clock(start.by_slurm) : null],
    ["SiteFactor", `${said.site_factor.now ?? "none"}, wanted ${said.site_factor.wanted}, bound ±${said.site_factor.bound}`]);
  else about.push(["left to Slurm", said.why]);
  const reason = said.slurm_reason || {};
  const held = [reason.meaning, reason.remedy].filter(Boolean).join(" ");
  const parts = [card(`Job ${id}`, facts(about))];
  const limits = (said.limits || []).map(l => make("li", l.text));
  if (reason.code || limits.length) parts.push(card("What holds it back",
    ...(reason.code ? [make("p", [make("code", reason.code), " ", held])] : []),
    ...(limits.length ? [make("ul", limits, "", {id: "limits"})] : [])));
  if (said.ahead?.jobs) parts.push(before(said.ahead));
  const why = (said.features || []).map(f => {
    const [value, usual] = [f.value, f.usual].map(v => TIMED.includes(f.feature) ? span(v) : f.unit === "GPUs" ? many(+short(v), "GPU") : short(v));
    const moved = f.places ? `${f.places > 0 ? "up" : "down"} ${Math.abs(f.places)}` : "no place";
    return row([[f.feature], [value, "n"], [usual, "n"], [moved, f.places > 0 ? "up" : f.places < 0 ? "down" : ""]]);
  });
  if (why.length) parts.push(card("What puts it there", table([["feature"], ["this job", "n"], ["usual here", "n"], ["moves it"]], why)));
  const moves = (said.what_would_move_it || []).map(m => make("li", `with ${m.what}: place ${m.rank}`));
  if (moves.length) parts.push(card("What would move it", make("ul", moves)));
  if (said.limit_advice) parts.push(card("Its time limit", make("p", said.limit_advice.text)));
  parts.push(...heldBack(said));
  const factors = Object.entries(said.slurm || {}).filter(([, v]) => v).map(([k, v]) => row([[k], [v, "n"]]));
  if (factors.length) parts.push(card("Slurm's priority", table([["factor"], ["points", "n"]], factors)));
  const past = (said.changes || []).map(c => row([[moment(c.time)], [c.old ?? "–", "n"], [c.new, "n"], [c.status], [c.reason, "long wide"]]));
  const written = past.length ? [card("What was written to it",
    table([["when"], ["from", "n"], ["to", "n"], ["became"], ["why", "long wide"]], past.reverse()))] : [];
  return [parts[0], make("div", parts.slice(1), "flow"), ...written];
}

function before(ahead) {
  const kinds = [["of the same user", ahead.yours], ["of the same account", ahead.same_account], ["of others", ahead.others],
    ["moved up: they have waited too long", ahead.promoted]].filter(([, n]) => n).map(([kind, n]) => `${count(n)} ${kind}`);
  return card("Who is ahead", make("p", `${many(ahead.jobs, "job")}: ${kinds.join(", ")}. They ask for ${many(ahead.gpus, "GPU")}, ` +
    `about ${count(Math.round(ahead.gpu_hours))} GPU hours of work.`, "", {id: "ahead"}));
}

function measured(id, said) {
  const m = said.measured, parts = [];
  if (m) parts.push(card(`Job ${id}: what node agents measured`, facts([["of", m.user], ["GPU type", m.gpu_type],
    ["GPUs used", `${m.gpus_used} of ${m.gpus}`], ["mean utilization", m.util_mean == null ? null : Math.round(m.util_mean) + "%"],
    ["95% of the time below", m.util_p95 == null ? null : Math.round(m.util_p95) + "%"],
    ["memory at most", (m.memory_peak_mb / 1024).toFixed(1) + " GB"], ["GPU time idle", span(60 * m.idle_gpu_minutes)],
    ["energy", (m.energy_j / 3.6e6).toFixed(2) + " kWh"]])));
  else parts.push(card(`Job ${id} of ${said.user}`, make("p", "It does not wait any more.")));
  return [...parts, ...heldBack(said)];
}

function heldBack(said) {
  const rows = (said.held_back || []).map(c => row([[span(c.seconds), "n"], [c.meaning, "long"]]));
  return rows.length ? [card("How long each cause held it back", table([["for", "n"], ["because", "long"]], rows))] : [];
}
