// What jobs make of their GPUs, by node agents: running ones, and those that ended within a day.
import {ask, card, link, make, row, span, table} from "./lib.js";

const HEADS = [["job", "n"], ["user"], ["type", "wide"], ["GPUs used", "n"], ["mean", "n"], ["95% below", "n wide"], ["memory", "n wide"],
  ["idle", "n"], ["energy", "n wide"]];
const percent = p => p == null ? "" : Math.round(p) + "%";

async function part(title, query, id) {
  const {jobs} = await ask("/v1/measured?limit=50" + query);
  const rows = jobs.map(m => row([[link(m.job_id), "n"], [m.user], [m.gpu_type, "wide"], [`${m.gpus_used} of ${m.gpus}`, "n"],
    [percent(m.util_mean), "n"], [percent(m.util_p95), "n wide"], [(m.memory_peak_mb / 1024).toFixed(1) + " GB", "n wide"],
    [span(60 * m.idle_gpu_minutes), "n"], [(m.energy_j / 3.6e6).toFixed(2) + " kWh", "n wide"]]));
  const section = card(title, rows.length ? table(HEADS, rows) : make("p", "No node agent tells of any.", "soft"));
  section.id = id;
  return section;
}

export const use = () => Promise.all([part("Running jobs, the idlest first", "", "used"),
  part("Ended within a day, the idlest first", "&ended=86400", "was")]);
