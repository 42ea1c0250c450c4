// Draws the charts that stand as JSON in the page, in the colours of its style. Nothing is fetched.
"use strict";
(() => {
  const root = document.documentElement;
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const problems = [];
  const say = (text) => { problems.push(text); root.dataset.problems = problems.join(" | "); };
  window.addEventListener("error", (event) => say(event.message));
  window.addEventListener("unhandledrejection", (event) => say(String(event.reason)));
  document.addEventListener("securitypolicyviolation", (event) => say("refused " + event.blockedURI));

  // "@name" anywhere in a chart is the style's colour of that name.
  const coloured = (value, style) => {
    if (typeof value === "string" && value.startsWith("@")) return style.getPropertyValue("--" + value.slice(1)).trim();
    if (Array.isArray(value)) return value.map((item) => coloured(item, style));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, style)]));
    return value;
  };

  const axis = (own, style, more) => {
    const quiet = style.getPropertyValue("--quiet").trim();
    const grid = style.getPropertyValue("--grid").trim();
    const { title, ...rest } = own || {};
    return {
      gridcolor: grid, zeroline: false, linecolor: grid, tickcolor: grid, automargin: true,
      tickfont: { color: quiet, size: 11 }, exponentformat: "power", ...more, ...rest,
      title: { text: "", standoff: 8, ...title, font: { color: quiet, size: 11 } },
    };
  };

  const layoutOf = (chart, style) => {
    const own = coloured(chart.layout, style);
    return {
      autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "x unified",
      margin: { l: 46, r: 10, t: 8, b: 34 }, showlegend: false,
      font: { family: style.getPropertyValue("--sans"), size: 12, color: style.getPropertyValue("--text").trim() },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11.5 }, itemwidth: 30 },
      hoverlabel: {
        bgcolor: style.getPropertyValue("--card").trim(), bordercolor: style.getPropertyValue("--rule").trim(),
        font: { color: style.getPropertyValue("--ink").trim(), size: 12 },
      },
      ...own,
      xaxis: axis(own.xaxis, style, { showgrid: false, ticks: "outside", ticklen: 4 }),
      yaxis: axis(own.yaxis, style, { nticks: 6 }),
    };
  };

  const place = (chart) => document.getElementById("chart-" + chart.id);
  const pressed = (chart) => {
    const button = document.querySelector(`.switch[data-chart="${chart.id}"]`);
    return button !== null && button.getAttribute("aria-pressed") === "true";
  };

  const draw = async () => {
    const style = getComputedStyle(root);
    for (const chart of charts) {
      const layout = layoutOf(chart, style);
      if (pressed(chart)) layout.yaxis = { ...layout.yaxis, type: "log", range: undefined, autorange: true };
      await Plotly.react(place(chart), coloured(chart.traces, style), layout, {
        responsive: true, displaylogo: false, displayModeBar: false,
      });
    }
    root.dataset.drawn = String(charts.length);
  };

  for (const button of document.querySelectorAll(".switch"))
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      draw();
    });

  // The table of a chart: a row a step, a column a curve, every value in full.
  const cell = (tag, text, kind) => {
    const element = document.createElement(tag);
    element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const tableOf = (chart) => {
    const traces = chart.traces.filter((trace) => !(trace.meta && trace.meta.mark));
    const bars = traces.some((trace) => trace.type === "bar");
    const heads = bars ? ["what", "steps"] : ["step", ...traces.map((trace) => trace.name)];
    const rows = new Map();
    for (const [column, trace] of traces.entries())
      trace.x.forEach((step, index) => {
        if (step === null) return;
        if (bars) return rows.set(`${column} ${index}`, [trace.name, trace.text ? trace.text[index].replace("<br>", ", ") : step]);
        if (!rows.has(step)) rows.set(step, [step, ...traces.map(() => "")]);
        const value = trace.y[index];
        rows.get(step)[column + 1] = value === null ? "none" : value;
      });
    const sorted = bars ? [...rows.values()] : [...rows.values()].sort((a, b) => a[0] - b[0]);
    const table = document.createElement("table");
    table.append(cell("caption", chart.title, "unseen"));
    const head = table.createTHead().insertRow();
    heads.forEach((name) => head.append(cell("th", name, bars ? "" : "num")));
    const body = table.createTBody();
    for (const row of sorted) {
      const line = body.insertRow();
      row.forEach((value) => line.append(cell("td", String(value), bars ? "" : "num")));
    }
    const scroll = document.createElement("div");
    scroll.className = "scroll";
    scroll.tabIndex = 0;
    scroll.append(table);
    return scroll;
  };
  for (const details of document.querySelectorAll("details[data-table]"))
    details.addEventListener("toggle", () => {
      if (details.open && details.childElementCount === 1)
        details.append(tableOf(charts.find((chart) => chart.id === details.dataset.table)));
    });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
