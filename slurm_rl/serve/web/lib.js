// What all views share: elements, words for numbers, questions to the service.
export const $ = id => document.getElementById(id);

export function make(tag, content, kind, attributes) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  for (const [name, value] of Object.entries(attributes || {})) if (value != null) element.setAttribute(name, value);
  for (const part of [content].flat()) if (part != null && part !== "") element.append(part);
  return element;
}

export const span = s => s == null ? "–" : s < 90 ? Math.round(s) + " s" : s < 5400 ? Math.round(s / 60) + " min" :
  s < 172800 ? (s / 3600).toFixed(1) + " h" : (s / 86400).toFixed(1) + " d";
export const count = n => n == null ? "–" : n.toLocaleString("en");
export const many = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;
export const percent = p => p == null ? "–" : Math.round(100 * p) + "%";
export const clock = t => t == null ? "–" : new Date(t * 1000).toLocaleString(undefined,
  {weekday: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23"});
export const moment = t => new Date(t * 1000).toLocaleString(undefined,
  {month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23"});
export const short = x => x == null ? "–" : String(+(+x).toPrecision(3));

export class Refused extends Error {
  constructor(status, detail) { super(detail); this.status = status; }
}

const BUSY = [503, 504], PATIENCE = [500, 1500];  // milliseconds: a machine under load may answer a little later

export async function ask(path, stream) {
  const token = sessionStorage.getItem("token");
  const get = () => fetch(path, {headers: token ? {Authorization: "Bearer " + token} : {}});
  let answer = await get();
  for (const wait of stream ? [] : PATIENCE) {
    if (!BUSY.includes(answer.status)) break;
    await new Promise(done => setTimeout(done, wait));
    answer = await get();
  }
  if (answer.ok && stream) return answer.body;
  const content = await answer.json().catch(() => ({detail: answer.statusText}));
  if (!answer.ok) throw new Refused(answer.status, content.detail);
  return content;
}

export const link = (id, text) => make("a", text ?? id, "", {href: "#/job/" + encodeURIComponent(id)});
export const row = (cells, kind) => make("tr", cells.map(([content, k]) => make("td", content ?? "", k)), kind);

export function table(heads, rows, caption) {
  const head = make("tr", heads.map(([name, kind]) => make("th", name, kind, {scope: "col"})));
  return make("table", [caption && make("caption", caption, "soft"), make("thead", head), make("tbody", rows)]);
}

export const card = (title, ...content) => make("section", [make("h2", title), ...content], "card");

export function bar(parts, label) {
  const all = parts.reduce((sum, [n]) => sum + n, 0) || 1;
  const pieces = parts.map(([n, kind]) => {
    const piece = make("i", null, kind);
    piece.style.width = `${100 * n / all}%`;
    return piece;
  });
  return make("div", pieces, "bar", {role: "img", "aria-label": label});
}

export const tile = (name, value, id) => make("div", [make("span", name), make("b", value ?? "–", "", {id})]);
