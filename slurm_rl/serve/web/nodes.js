// Nodes as a map by GPU type, the fuller the darker; a chosen one tells its jobs.
import {$, ask, card, count, link, make, span, table, row} from "./lib.js";

let chosen = "";

export async function nodes(name, {redraw}) {
  const all = (await ask("/v1/nodes")).nodes;
  if (name) chosen = name;
  const groups = new Map();
  for (const node of all) {
    const kind = node.gpus.map(g => g.type).join(" + ") || "no GPU";
    if (!groups.has(kind)) groups.set(kind, []);
    groups.get(kind).push(node);
  }
  const maps = [...groups].sort((a, b) => b[1].length - a[1].length).map(([kind, list]) =>
    card(`${kind}: ${count(list.length)} nodes`, make("div", list.map(node => square(node, redraw)), "map")));
  const node = all.find(n => n.name === chosen);
  return [make("p", "One square a node: the stronger its colour, the more of its GPUs (or CPUs) are in use; striped: it takes no jobs.", "soft"),
    ...maps, ...(node ? [detail(node)] : [])];
}

function share(node) {
  const gpus = node.gpus.reduce((n, g) => n + g.count, 0), used = node.gpus.reduce((n, g) => n + g.used, 0);
  return gpus ? used / gpus : node.cpus ? node.cpus_used / node.cpus : 0;
}

function words(node) {
  const gpus = node.gpus.map(g => `${g.used} of ${g.count} ${g.type}`).join(", ");
  return `${node.name}: ${node.condition}, ${gpus ? gpus + ", " : ""}${node.cpus_used} of ${node.cpus} CPUs`;
}

function square(node, redraw) {
  const button = make("button", null, node.condition === "down" ? "downed" : "", {title: words(node), "aria-label": words(node)});
  if (node.condition !== "down")
    button.style.background = `color-mix(in oklab, var(--used) ${Math.round(100 * share(node))}%, var(--idle))`;
  button.onclick = () => { chosen = node.name; redraw().then(() => $("node").scrollIntoView({block: "nearest"})); };
  return button;
}

function detail(node) {
  const rows = node.jobs.map(j => row([[link(j.job_id), "n"], [j.user], [j.name]]));
  const facts = make("dl", [["state", node.state], ["partitions", node.partitions.join(", ")],
    ["GPUs in use", node.gpus.map(g => `${g.used} of ${g.count} ${g.type}`).join(", ") || "none here"],
    ["CPUs in use", `${node.cpus_used} of ${node.cpus}`],
    ["memory allotted", `${(node.mem_mb_used / 1024).toFixed(0)} of ${(node.mem_mb / 1024).toFixed(0)} GB`]]
    .flatMap(([k, v]) => [make("dt", k), make("dd", v)]));
  const section = card(node.name, facts, make("h3", "Jobs on it"), rows.length ?
    table([["job", "n"], ["user"], ["name"]], rows) : make("p", node.others ? "" : "None.", "soft"));
  if (node.others) section.append(make("p", `${node.others} of other users.`, "soft"));
  section.id = "node";
  return section;
}
