/* What a page does beyond its still pictures: plots with values under the pointer and a zoom, tables that sort, a theme.
   uPlot draws axes and handles the zoom; marks are drawn here, as series of a report need not share their x. Without
   JavaScript, or if anything below fails, the still picture stays. */
(() => {
  "use strict";
  const root = document.documentElement, drawn = [];
  const COLOURS = ["#2f7ec4", "#d0651e", "#2f9a55", "#9a62c8", "#d9485f", "#17938f", "#a2703f", "#cc5aa5", "#8a8a24", "#6f8199"];
  const BELOW = COLOURS[0], ABOVE = COLOURS[4], AMOUNT = COLOURS[5], LINES = "#7f8895", ABSENT = "#8888888c";
  const NEAR = 40, MANY = 400;

  const make = (tag, facts = {}, ...inside) => {
    const made = Object.assign(document.createElement(tag), facts);
    made.append(...inside);
    return made;
  };
  const probe = make("i", { hidden: true });
  const colour = (name) => { probe.style.color = `var(${name})`; return getComputedStyle(probe).color; };
  const said = (value) => value == null || Number.isNaN(value) ? "none" : Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
  const instant = (seconds) => new Date(1000 * seconds).toISOString().replace("T00:00:00.000Z", "").replace(".000Z", " UTC");

  /* The theme: that of the system until a reader chooses. */
  const kept = (value) => { try { return value === undefined ? localStorage.getItem("npmdask-theme") : localStorage.setItem("npmdask-theme", value); } catch { return null; } };
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const redraw = () => drawn.forEach((plot) => plot.redraw(false, true));
  function themes() {
    if (["light", "dark"].includes(kept())) root.dataset.theme = kept();
    const button = make("button", { className: "theme", type: "button" });
    const name = () => { button.textContent = dark() ? "Light page" : "Dark page"; };
    button.onclick = () => { root.dataset.theme = dark() ? "light" : "dark"; kept(root.dataset.theme); name(); redraw(); };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { name(); redraw(); });
    name();
    document.querySelector("header").prepend(button);
  }

  /* Tables: a click on a name in the head sorts by that column, numbers as numbers. */
  const number = (text) => { const found = /^[±+]?\s*(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)/i.exec(text.trim().replace("−", "-")); return found ? Number(found[1].replaceAll(",", "")) : NaN; };
  function sortable(table) {
    const body = table.tBodies[0], heads = table.tHead ? [...table.tHead.rows[0].cells] : [];
    if (!body || body.rows.length < 3) return;
    heads.forEach((head, at) => {
      if (!head.textContent.trim()) return;
      const button = make("button", { type: "button" }, ...head.childNodes);
      button.onclick = () => {
        const down = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down > 0 ? "ascending" : "descending");
        const text = (row) => row.cells[at] ? row.cells[at].textContent : "";
        const before = (a, b) => { const x = number(text(a)), y = number(text(b)); return Number.isNaN(x) || Number.isNaN(y) ? Number.isNaN(x) - Number.isNaN(y) || text(a).localeCompare(text(b)) : x - y; };
        body.append(...[...body.rows].sort((a, b) => down * before(a, b)));
      };
      head.append(button);
    });
  }

  /* Ranges */
  const extent = (values) => values.reduce(([low, high], v) => v == null || Number.isNaN(v) ? [low, high] : [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
  function padded(low, high, share) { const room = (high - low) * share || Math.abs(high) * share || 1; return [low - room, high + room]; }
  function rangeOf(facts, right) {
    const found = facts.series.filter((s) => Boolean(s.right) === right).flatMap((s) => s.y.flatMap((y, i) => s.spread ? [y - s.spread[i], y + s.spread[i]] : [y]));
    const rules = right ? [] : facts.rules.filter((rule) => rule.y != null).map((rule) => rule.y);
    let [low, high] = extent([...found, ...rules]);
    if (!right && facts.log) { const up = [...found, ...rules].filter((y) => y > 0); [low, high] = extent(up); return low < high ? [low / 1.6, high * 1.6] : [low / 10, high * 10]; }
    const zero = right || facts.series.some((s) => s.style === "bars");
    [low, high] = zero ? [low < 0 ? padded(low, high, 0.05)[0] : 0, padded(Math.min(low, 0), Math.max(high, 0), 0.05)[1]] : padded(low, high, 0.06);
    return right ? [0, facts.right_top ?? high] : [facts.bottom ?? low, facts.top ?? high];
  }

  /* Marks of a plot */
  function draws(facts, shown) {
    const many = facts.series.reduce((sum, series) => sum + series.x.length, 0) > MANY;
    return (u) => {
      const { ctx, bbox } = u, ratio = uPlot.pxRatio;
      ctx.save();
      ctx.beginPath(); ctx.rect(bbox.left - 6 * ratio, bbox.top - 6 * ratio, bbox.width + 12 * ratio, bbox.height + 12 * ratio); ctx.clip();
      facts.rules.forEach((rule) => {
        const level = u.valToPos(rule.y ?? rule.x, rule.y == null ? "x" : "y", true);
        ctx.strokeStyle = LINES; ctx.lineWidth = ratio; ctx.setLineDash([5 * ratio, 4 * ratio]); ctx.beginPath();
        if (rule.y == null) { ctx.moveTo(level, bbox.top); ctx.lineTo(level, bbox.top + bbox.height); } else { ctx.moveTo(bbox.left, level); ctx.lineTo(bbox.left + bbox.width, level); }
        ctx.stroke(); ctx.setLineDash([]);
        if (rule.name) { ctx.fillStyle = colour("--faint"); ctx.font = `${12 * ratio}px system-ui, sans-serif`; ctx.textAlign = "right"; ctx.fillText(rule.name, rule.y == null ? level - 4 * ratio : bbox.left + bbox.width, rule.y == null ? bbox.top + 14 * ratio : level - 4 * ratio); }
      });
      facts.series.forEach((series, number) => {
        if (!shown[number]) return;
        const scale = series.right ? "r" : "y";
        const x = series.x.map((v) => u.valToPos(v, "x", true)), y = series.y.map((v) => facts.log && !series.right && !(v > 0) ? NaN : u.valToPos(v, scale, true));
        ctx.strokeStyle = ctx.fillStyle = COLOURS[number % COLOURS.length];
        ctx.lineWidth = (series.style === "thin" || series.style === "steps" ? 1.2 : 2) * ratio;
        if (series.style === "bars") {
          const gap = x.length > 1 ? Math.min(...x.slice(1).map((v, i) => Math.abs(v - x[i]))) : bbox.width / 4, wide = Math.max(1, 0.7 * gap);
          const floor = u.valToPos(Math.max(0, u.scales[scale].min), scale, true);
          x.forEach((v, i) => ctx.fillRect(v - wide / 2, Math.min(y[i], floor), wide, Math.abs(floor - y[i])));
          return;
        }
        if (series.style !== "points") {
          if (series.style === "dashed") ctx.setLineDash([6 * ratio, 4 * ratio]);
          ctx.beginPath();
          x.forEach((v, i) => { if (i && series.style === "steps") ctx.lineTo(v, y[i - 1]); ctx[i ? "lineTo" : "moveTo"](v, y[i]); });
          ctx.stroke(); ctx.setLineDash([]);
        }
        if (series.spread) x.forEach((v, i) => { const up = u.valToPos(series.y[i] + series.spread[i], scale, true), down = u.valToPos(series.y[i] - series.spread[i], scale, true), cap = 3 * ratio; ctx.beginPath(); ctx.moveTo(v, up); ctx.lineTo(v, down); ctx.moveTo(v - cap, up); ctx.lineTo(v + cap, up); ctx.moveTo(v - cap, down); ctx.lineTo(v + cap, down); ctx.stroke(); });
        if (series.style === "steps" || series.style === "thin" && many) return;
        const size = (many ? 1.7 : series.style === "thin" ? 2.2 : 3.5) * ratio;
        if (many) ctx.globalAlpha = 0.75;
        ctx.beginPath();
        x.forEach((v, i) => { if (Number.isNaN(y[i])) return; ctx.moveTo(v + size, y[i]); ctx.arc(v, y[i], size, 0, 7); });
        ctx.fill(); ctx.globalAlpha = 1;
      });
      ctx.restore();
    };
  }

  /* Cells of a map */
  const edges = (at) => at.length < 2 ? [at[0] - 0.5, at[0] + 0.5] : [at[0] - (at[1] - at[0]) / 2, ...at.slice(1).map((v, i) => (v + at[i]) / 2), at[at.length - 1] + (at[at.length - 1] - at[at.length - 2]) / 2];
  const shade = (hex, share) => hex + Math.round(255 * Math.min(1, Math.max(0, share))).toString(16).padStart(2, "0");
  function cells(facts) {
    const bytes = Uint8Array.from(atob(facts.cells), (c) => c.charCodeAt(0)), values = new Float32Array(bytes.buffer), n = facts.x.length;
    const across = edges(facts.x), up = edges(facts.y), top = Math.log(Math.max(facts.most, 2));
    const paint = (v) => Number.isNaN(v) ? facts.colours === "signed" ? ABSENT : "" : facts.colours === "signed" ? v ? shade(v < 0 ? BELOW : ABOVE, Math.abs(v) / facts.most) : "" : v > 0 ? shade(AMOUNT, 0.19 + 0.81 * Math.log(Math.max(v, 1)) / top) : "";
    const coast = (ctx, px, py) => {  // between cells with a value and cells without
      ctx.beginPath();
      values.forEach((v, i) => {
        const column = i % n, row = (i - column) / n, right = px[column + 1], below = py[row + 1], absent = Number.isNaN(v);
        if (column + 1 < n && Number.isNaN(values[i + 1]) !== absent) { ctx.moveTo(right, py[row]); ctx.lineTo(right, below); }
        if (i + n < values.length && Number.isNaN(values[i + n]) !== absent) { ctx.moveTo(px[column], below); ctx.lineTo(right, below); }
      });
      ctx.strokeStyle = colour("--ink"); ctx.lineWidth = 0.8 * uPlot.pxRatio; ctx.stroke();
    };
    const draw = (u) => {
      const { ctx, bbox } = u, px = across.map((v) => Math.round(u.valToPos(v, "x", true))), py = up.map((v) => Math.round(u.valToPos(v, "y", true)));
      ctx.save(); ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
      values.forEach((v, i) => {
        const fill = paint(v), column = i % n, row = (i - column) / n;
        if (!fill) return;
        ctx.fillStyle = fill;
        ctx.fillRect(Math.min(px[column], px[column + 1]), Math.min(py[row], py[row + 1]), Math.abs(px[column + 1] - px[column]), Math.abs(py[row + 1] - py[row]));
      });
      if (facts.colours === "signed") coast(ctx, px, py);
      ctx.restore();
    };
    const inside = (limits, v) => limits.findIndex((edge, i) => i + 1 < limits.length && (v - edge) * (v - limits[i + 1]) <= 0);
    const say = (x, y) => {
      const column = inside(across, x), row = inside(up, y);
      if (column < 0 || row < 0) return null;
      const v = values[row * n + column];
      return `${facts.x_name || "column"} ${said(facts.x[column])}, ${facts.y_name || "row"} ${said(facts.y[row])}\n${Number.isNaN(v) ? "no value" : facts.colours === "amount" ? `${said(v)} rows` : said(v)}`;
    };
    return { draw, say, across: extent(across), up: extent(up) };
  }

  /* One figure */
  function enliven(figure) {
    const facts = JSON.parse(figure.querySelector("script").textContent), still = figure.querySelector(".still"), isMap = facts.block === "map";
    const shown = (facts.series || []).map(() => true), map = isMap ? cells(facts) : null;
    const xs = isMap ? map.across : (() => {
      const [low, high] = extent([...facts.series.flatMap((s) => s.x), ...facts.rules.filter((r) => r.x != null).map((r) => r.x)]);
      return facts.series.some((s) => s.style === "bars") ? [low - 0.6, high + 0.6] : padded(low, high, 0.03);
    })();
    const ys = isMap ? map.up : rangeOf(facts, false), rs = !isMap && facts.series.some((s) => s.right) ? rangeOf(facts, true) : null;
    if (![...xs, ...ys].every(Number.isFinite)) return;
    const hover = make("div", { className: "hover", hidden: true });
    hover.setAttribute("role", "status");
    const holder = make("div", { className: "live", tabIndex: 0 }, hover), keys = make("div", { className: "keys" });
    holder.setAttribute("role", "application");
    holder.setAttribute("aria-label", `${figure.querySelector("figcaption").textContent}: ${isMap ? "map; values appear under the pointer" : "plot; arrow keys step through its points"}`);
    const ratio = facts.pixels ? facts.y.length / facts.x.length : isMap && facts.colours === "signed" ? Math.min(1, Math.max(0.45, (ys[1] - ys[0]) / (xs[1] - xs[0]))) : 0.62;
    const size = () => { const width = Math.max(120, Math.min(620, figure.clientWidth - (facts.pixels ? 20 : 28))); return { width, height: Math.round(width * ratio) + (facts.pixels ? 0 : isMap ? 40 : 20) }; };
    const ink = () => colour("--ink"), lines = { stroke: () => colour("--line"), width: 1 };
    const axis = (more) => ({ stroke: ink, grid: lines, ticks: lines, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 18, ...more });
    const plain = (u, splits) => splits.map((v) => v == null ? "" : Math.abs(v) >= 1e5 || v && Math.abs(v) < 1e-3 ? v.toExponential(0).replace("e+", "e") : said(v));
    const whole = (u, splits) => splits.map((v) => Number.isInteger(v) ? said(v) : "");
    const rows = (u, splits) => splits.map((v) => v >= 1e6 ? `${said(v / 1e6)}M` : v >= 1e3 ? `${said(v / 1e3)}k` : said(v));
    const decades = Math.log10(ys[1] / ys[0]), every = Math.ceil(decades / 9); // more names than that lie on each other on a phone
    const isPower = (v) => v > 0 && (decades < 1.5 || Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9 && Math.round(Math.log10(v)) % every === 0);
    const powers = (u, splits) => splits.map((v) => isPower(v) ? v : null);
    const marks = (u, i, low, high) => { // uPlot begins at the end of the axis, and meets no power from there
      const found = [];
      for (let e = Math.floor(Math.log10(low)); 10 ** e <= high; e++) for (let k = 1; k < 10; k++) { const v = Number(`${k}e${e}`); if (v >= low && v <= high) found.push(v); }
      return found;
    };
    const upright = isMap ? facts.y_name : facts.y, small = Math.max(8, Math.min(12, Math.floor(12 * (size().height - 60) / (6.4 * (upright.length || 1)))));
    const axes = facts.pixels ? [{ show: false }, { show: false }] : [
      axis({ label: isMap ? facts.x_name : facts.x, size: 34, values: isMap || facts.x_is === "value" ? plain : facts.x_is === "time" ? undefined : facts.x_is === "count" ? rows : whole }),
      axis({ label: upright, labelFont: `${small}px system-ui, sans-serif`, size: 56, values: plain, ...(facts.log ? { splits: marks, filter: powers, grid: { ...lines, filter: powers }, ticks: { ...lines, filter: powers } } : {}) }),
    ];
    if (rs) axes.push(axis({ scale: "r", side: 1, label: facts.right, size: 46, values: plain, grid: { show: false } }));
    const fixed = ([low, high]) => ({ auto: false, range: (u, a, b) => a == null || b == null ? [low, high] : [a, b], min: low, max: high });
    const zoomed = make("button", { type: "button", hidden: true, textContent: "Reset zoom" });
    const u = new uPlot({
      ...size(), axes, legend: { show: false }, tzDate: (seconds) => uPlot.tzDate(new Date(1000 * seconds), "Etc/UTC"),
      padding: facts.pixels ? [0, 0, 0, 0] : [10, rs ? 0 : 14, 0, 0],
      scales: { x: { ...fixed(xs), time: facts.x_is === "time" }, y: { ...fixed(ys), distr: facts.log ? 3 : 1, dir: facts.pixels ? -1 : 1 }, ...(rs ? { r: fixed(rs) } : {}) },
      series: [{}, { show: true, paths: () => null, points: { show: false } }, ...(rs ? [{ scale: "r", paths: () => null, points: { show: false } }] : [])],
      cursor: { points: { show: false }, x: !isMap, y: !isMap, drag: { x: !facts.pixels, y: !facts.pixels, uni: 20, setScale: true }, bind: { dblclick: () => () => { reset(); return null; } } },
      hooks: { draw: [isMap ? map.draw : draws(facts, shown)], setScale: [({ scales }) => { zoomed.hidden = scales.x.min === xs[0] && scales.x.max === xs[1] && scales.y.min === ys[0] && scales.y.max === ys[1]; }] },
    }, rs ? [xs, ys, rs] : [xs, ys], holder);
    function reset() { u.batch(() => { u.setScale("x", { min: xs[0], max: xs[1] }); u.setScale("y", { min: ys[0], max: ys[1] }); if (rs) u.setScale("r", { min: rs[0], max: rs[1] }); }); }
    zoomed.onclick = reset;

    /* What is under the pointer, or where the arrow keys are */
    const show = (text, left, top) => {
      hover.hidden = text == null;
      if (text == null) return;
      hover.textContent = text;
      const x = left + u.over.offsetLeft, y = top + u.over.offsetTop;
      hover.style.left = `${Math.max(0, Math.min(x + 12, holder.clientWidth - hover.offsetWidth))}px`;
      hover.style.top = `${y > hover.offsetHeight + 14 ? y - hover.offsetHeight - 10 : y + 14}px`;
    };
    const at = (series, i) => [u.valToPos(series.x[i], "x"), u.valToPos(series.y[i], series.right ? "r" : "y")];
    const point = (number, i) => {
      const series = facts.series[number], x = facts.x_is === "time" ? instant(series.x[i]) : said(series.x[i]);
      const spread = series.spread ? ` ± ${said(series.spread[i])}` : "";
      return [series.labels && series.labels[i], series.name, `${facts.x || "x"}: ${x}`, `${(series.right ? facts.right : facts.y) || "y"}: ${said(series.y[i])}${spread}`].filter(Boolean).join("\n");
    };
    u.over.addEventListener("mousemove", (event) => {
      const box = u.over.getBoundingClientRect(), left = event.clientX - box.left, top = event.clientY - box.top;
      if (isMap) return show(map.say(u.posToVal(left, "x"), u.posToVal(top, "y")), left, top);
      let best = null, least = NEAR * NEAR;
      facts.series.forEach((series, number) => shown[number] && series.x.forEach((v, i) => {
        const [x, y] = at(series, i), far = (x - left) ** 2 + (y - top) ** 2;
        if (far < least) { least = far; best = [number, i, x, y]; }
      }));
      return best ? show(point(best[0], best[1]), best[2], best[3]) : show(null);
    });
    u.over.addEventListener("mouseleave", () => show(null));
    holder.addEventListener("blur", () => show(null));
    const here = [0, -1];
    holder.addEventListener("keydown", (event) => {
      const along = { ArrowRight: 1, ArrowLeft: -1 }[event.key] || 0, other = { ArrowDown: 1, ArrowUp: -1 }[event.key] || 0;
      if (event.key === "Escape") { show(null); reset(); }
      if (isMap || !(along || other) || !shown.some(Boolean)) return;
      event.preventDefault();
      do here[0] = (here[0] + other + shown.length) % shown.length; while (!shown[here[0]] && (other || (here[0] = shown.indexOf(true)) < 0));
      const series = facts.series[here[0]];
      here[1] = Math.max(0, Math.min(series.x.length - 1, here[1] + along));
      show(point(here[0], here[1]), ...at(series, here[1]));
    });

    /* Series that can be hidden, and what colours mean */
    if (!isMap && facts.series.some((series) => series.name)) facts.series.forEach((series, number) => {
      const patch = make("i"), key = make("button", { type: "button" }, patch, series.name || facts.y);
      patch.style.background = COLOURS[number % COLOURS.length];
      key.setAttribute("aria-pressed", "true");
      key.onclick = () => { shown[number] = !shown[number]; key.setAttribute("aria-pressed", String(shown[number])); u.redraw(false, false); };
      keys.append(key);
    });
    keys.append(zoomed);
    still.hidden = true;
    still.after(keys, holder);
    if (isMap && !facts.pixels) {
      const bar = make("i"), ends = facts.colours === "signed" ? [`−${said(facts.most)}`, said(facts.most)] : ["1", `${said(facts.most)} rows`];
      bar.style.background = facts.colours === "signed" ? `linear-gradient(90deg, ${BELOW}, ${BELOW}00, ${ABOVE}00, ${ABOVE})` : `linear-gradient(90deg, ${AMOUNT}30, ${AMOUNT})`;
      holder.after(make("div", { className: "scale" }, ends[0], bar, ends[1]));
    }
    drawn.push(u);
    new ResizeObserver(() => { const wanted = size(); if (wanted.width !== u.width) u.setSize(wanted); }).observe(figure);
  }

  document.body.append(probe);
  themes();
  document.querySelectorAll("main table:not(.list)").forEach(sortable);
  document.querySelectorAll("figure > script").forEach((script) => { try { enliven(script.parentElement); } catch (error) { console.error(error); } });
})();
