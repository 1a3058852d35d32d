// The pending queue: searched, sorted and paged by the service.
import {$, ask, count, link, make, row, span} from "./lib.js";

const PAGE = 100;
const COLUMNS = [["place", "rank", "n"], ["job", "job", "n"], ["user", "user"], ["name", "name", "wide"],
  ["partition", "partition", "wide"], ["GPUs", "gpus", "n"], ["waits", "wait", "n"], ["runs for", "estimate", "n wide"],
  ["starts in", "start", "n"], ["SiteFactor", null, "n wide"], ["held back by", null, "long wide"]];
// Places are counted in each partition: where several are shown together, a place says in which.
let names = [];
const wanted = {match: "", sort: "rank", descending: false, offset: 0};
let pause;

export async function queue(partition, {fresh, redraw, still}) {
  if (fresh && wanted.partition !== partition) Object.assign(wanted, {partition, offset: 0});
  const query = new URLSearchParams({...wanted, limit: PAGE});
  const said = await ask("/v1/queue?" + query);
  if (!still()) return null;
  if (wanted.offset && wanted.offset >= said.matching) { wanted.offset = 0; return queue(partition, {redraw, still}); }
  if (fresh || !$("rows")) {
    names = ((await ask("/v1/overview")).partitions || []).map(p => p.name);
    $("view").replaceChildren(frame(names, partition, redraw));
  }
  $("rows").replaceChildren(...said.jobs.map(job => line(job, said.time, names.length > 1 && !partition)));
  const last = wanted.offset + said.jobs.length;
  $("shown").textContent = said.matching ? `${count(wanted.offset + 1)}–${count(last)} of ${count(said.matching)}` +
    (said.matching < said.pending ? ` found in ${count(said.pending)} jobs` : " jobs") : "No job is pending here";
  $("back").disabled = !wanted.offset;
  $("on").disabled = last >= said.matching;
  for (const th of document.querySelectorAll("#heads th")) {
    if (th.dataset.sort === wanted.sort) th.setAttribute("aria-sort", wanted.descending ? "descending" : "ascending");
    else th.removeAttribute("aria-sort");
  }
  return null;
}

function frame(names, partition, redraw) {
  const search = make("input", null, "", {id: "filter", type: "search", placeholder: "user, name or job id",
    "aria-label": "search the queue"});
  search.value = wanted.match;
  search.oninput = () => { clearTimeout(pause); pause = setTimeout(() => {
    Object.assign(wanted, {match: search.value.trim(), offset: 0}); redraw(); }, 200); };
  const choose = make("select", [make("option", "all partitions", "", {value: ""}),
    ...names.map(name => make("option", name, "", {value: name}))], "", {"aria-label": "partition"});
  choose.value = partition;
  choose.onchange = () => { location.hash = "#/queue" + (choose.value ? "/" + encodeURIComponent(choose.value) : ""); };
  const heads = COLUMNS.map(([title, key, kind]) => {
    const th = make("th", key ? make("button", title) : title, kind, {scope: "col", "data-sort": key});
    if (key) th.firstChild.onclick = () => {
      wanted.descending = wanted.sort === key && !wanted.descending;
      Object.assign(wanted, {sort: key, offset: 0});
      redraw();
    };
    return th;
  });
  const turn = (id, title, step) => {
    const button = make("button", title, "", {id});
    button.onclick = () => { wanted.offset = Math.max(0, wanted.offset + step); redraw(); };
    return button;
  };
  return make("section", [make("div", [make("h2", "Queue"), choose, search], "controls"),
    make("table", [make("thead", make("tr", heads, "", {id: "heads"})), make("tbody", null, "", {id: "rows"})]),
    make("div", [make("span", null, "soft", {id: "shown", role: "status"}), turn("back", "← earlier", -PAGE),
      turn("on", "later →", PAGE)], "controls")], "card");
}

function line(job, now, several) {
  const until = t => span(Math.max(0, t - now));
  const range = job.expected_range, start = job.expected_start == null ? "" : range && range[1] - range[0] >= 60 ?
    [until(job.expected_start), make("span", ` (${until(range[0])} – ${until(range[1])})`, "wide")] : until(job.expected_start);
  const alone = job.rank < 0;
  const factor = job.site_factor == null ? "" : alone || job.site_factor === job.wanted ? job.site_factor :
    `${job.site_factor} → ${job.wanted}`;
  const place = alone ? "–" : [String(job.rank + 1), make("span", ` of ${job.of}`, "wide"),
    several ? make("span", ` in ${job.partition}`, "narrow") : ""];
  return row([[place, "n"], [link(job.job_id), "n"], [job.user], [job.name, "wide"],
    [job.partition, "wide"], [job.gpus, "n"], [span(job.wait), "n"], [alone ? "" : span(job.estimate), "n wide"], [start, "n"],
    [factor, "n wide"], [alone ? job.why : job.promoted ? "nothing: it has waited long enough to go first" :
      job.reason_in_words || job.reason, "long wide"]], alone ? "alone" : "");
}
