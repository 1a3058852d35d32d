// The journal: what was written to Slurm, or would have been.
import {$, ask, link, make, moment, row, table} from "./lib.js";

const PAGE = 200, STATUSES = ["", "applied", "shadow", "refused", "unknown", "intended"];
const wanted = {job: "", status: "", before: ""};

export async function decisions(rest, {redraw}) {
  const query = new URLSearchParams(Object.entries({...wanted, limit: PAGE}).filter(([, v]) => v !== ""));
  const rows = (await ask("/v1/decisions?" + query)).decisions;
  const which = make("input", null, "", {type: "search", placeholder: "job id", "aria-label": "only this job", inputmode: "numeric", id: "filter"});
  which.value = wanted.job;
  which.onchange = () => { Object.assign(wanted, {job: which.value.replace(/\D/g, ""), before: ""}); redraw(); };
  const status = make("select", STATUSES.map(s => make("option", s || "whatever became of it", "", {value: s})), "", {"aria-label": "what became of it"});
  status.value = wanted.status;
  status.onchange = () => { Object.assign(wanted, {status: status.value, before: ""}); redraw(); };
  const newest = make("button", "newest");
  newest.disabled = !wanted.before;
  newest.onclick = () => { wanted.before = ""; redraw(); };
  const older = make("button", "older →");
  older.disabled = rows.length < PAGE;
  older.onclick = () => { wanted.before = rows.at(-1).id; redraw(); };
  const lines = rows.map(d => row([[moment(d.time)], [link(d.job_id), "n"], [d.old ?? "–", "n"], [d.new, "n"], [d.status], [d.reason, "long wide"]]));
  return make("section", [make("div", [make("h2", "SiteFactors, the newest first"), which, status, newest, older], "controls"),
    rows.length ? table([["when"], ["job", "n"], ["from", "n"], ["to", "n"], ["became"], ["why", "long wide"]], lines) :
      make("p", "Nothing in the journal fits.", "soft")], "card");
}
