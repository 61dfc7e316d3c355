#!/usr/bin/env python3
"""Tables and a page of an evaluation: reads DIR/results.jsonl, which kvpolicy-eval wrote, and writes DIR/summary.md and DIR/report.html.

    kvpolicy-eval-report DIR
"""
import json
import math
import os
import random
import sys

ANSWERED = .5  # by dense decoding: what a task must be for its scores to tell of a policy
BENCHMARKS_FORM = "prefix"


def mean(values):
    return sum(values) / len(values) if values else 0


def share_of_dense(paired, pick=lambda records: records):
    """The policy's mean over tasks, each the mean of its records, as a share of dense decoding's; 0 where that is 0.

    @param paired  {task: [(the policy's score, dense decoding's of the same record)]}"""
    drawn = [pick(records) for records in paired.values()]
    dense = sum(mean([theirs for _, theirs in records]) for records in drawn)
    return sum(mean([ours for ours, _ in records]) for records in drawn) / dense if dense > 0 else 0


def quantile(values, q):
    values = sorted(values)
    place = q * (len(values) - 1)
    low = int(place)
    return values[low] + (place - low) * (values[min(low + 1, len(values) - 1)] - values[low])


def bootstrap_interval(paired, draws=2000):
    """The middle 95 % of share_of_dense where records are drawn anew, task by task, with replacement; the same draws in every run."""
    source = random.Random(20261122)
    shares = [share_of_dense(paired, lambda records: source.choices(records, k=len(records))) for _ in range(draws)]
    return quantile(shares, .025), quantile(shares, .975)


def signs_against_dense(paired):
    """Records below and above dense decoding, and p of a split at least as uneven, were both as likely; two-sided."""
    pairs = [pair for records in paired.values() for pair in records]
    worse = sum(ours < theirs for ours, theirs in pairs)
    better = sum(ours > theirs for ours, theirs in pairs)
    n = worse + better
    log_of = [math.lgamma(x + 1) for x in range(n + 1)]
    tail = sum(math.exp(log_of[n] - log_of[k] - log_of[n - k] - n * math.log(2)) for k in range(min(worse, better) + 1))
    return worse, better, min(1, 2 * tail)


class Gathered:
    """All lines by policy and budget."""

    def __init__(self, lines):
        new = lambda names: list(dict.fromkeys(names))
        self.lines = lines
        self.tasks = sorted(new(line["task"] for line in lines))
        self.forms = new(line["form"] for line in lines)
        # The forms whose mean is the result: all but the benchmark's, where there are others.
        self.asked = [form for form in self.forms if form != BENCHMARKS_FORM or len(self.forms) == 1]
        dense = {(line["task"], line["record"], line["form"]): line["score"] for line in lines if line["policy"] == "dense"}
        of_dense = {}
        for (task, _, form), score in dense.items():
            of_dense.setdefault((form, task), []).append(score)
        answers = {key for key, scores in of_dense.items() if mean(scores) >= ANSWERED}
        told = [(task, [form for form in self.asked if (form, task) in answers]) for task in self.tasks]
        self.answered = [f"{task} ({', '.join(forms)})" for task, forms in told if forms]
        self.order = sorted(new((line["policy"], line["budget"]) for line in lines), key=lambda at: at[0] != "dense")
        self.of = {at: [line for line in lines if (line["policy"], line["budget"]) == at] for at in self.order}
        self.by_form = {}  # {(policy, budget): {form: {task: pairs}}}, of the tasks that dense decoding answers in that form
        for at in self.order:
            for line in self.of[at]:
                theirs = dense.get((line["task"], line["record"], line["form"]))
                if theirs is not None and (line["form"], line["task"]) in answers:
                    of_form = self.by_form.setdefault(at, {}).setdefault(line["form"], {})
                    of_form.setdefault(line["task"], []).append((line["score"], theirs))

    def paired(self, at):
        """Of all forms that count: each task in each form by itself."""
        forms = self.by_form.get(at, {})
        return {f"{form} {task}": pairs for form in sorted(forms) if form in self.asked for task, pairs in sorted(forms[form].items())}


def table(rows):
    """As Markdown; the first row is the head, the first column is aligned to the left."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    text = ["| " + " | ".join(cell.ljust(w) if c == 0 else cell.rjust(w) for c, (cell, w) in enumerate(zip(row, widths))) + " |"
            for row in rows]
    text.insert(1, "|" + "|".join("-" * (w + 1) + ("-" if c == 0 else ":") for c, w in enumerate(widths)) + "|")
    return "\n".join(text) + "\n"


def percent(share):
    return f"{100 * share:.0f}%"


def summary(lines):
    """Two tables, dense first: shares of dense decoding's score by form, and mean scores by task."""
    all_ = Gathered(lines)
    by_form = [["policy", "budget", "of dense", "95 %", "worse/better", "p", *all_.forms, "read", "ms/token", "choose"]]
    by_task = [["policy", "budget", *all_.tasks]]
    for at in all_.order:
        begin = [at[0], str(at[1] or "")]
        is_dense, paired, mine = at[0] == "dense", all_.paired(at), all_.of[at]
        told = [""] * 4
        if paired and not is_dense:
            low, high = bootstrap_interval(paired)
            worse, better, p = signs_against_dense(paired)
            told = [percent(share_of_dense(paired)), f"{100 * low:.0f}-{100 * high:.0f}", f"{worse}/{better}", f"{p:.3f}"]
        forms = all_.by_form.get(at, {})
        shares = ["" if is_dense or form not in forms else percent(share_of_dense(forms[form])) for form in all_.forms]
        of = lambda name: mean([line[name] for line in mine])
        by_form.append([*begin, *told, *shares, f"{of('tokens_read'):.0f}", f"{of('ms_per_token'):.2f}",
                        "" if is_dense else f"{100 * of('choose_share'):.1f}%"])
        scores = {task: [line["score"] for line in mine if line["task"] == task and line["form"] in all_.asked] for task in all_.tasks}
        by_task.append(begin + [f"{100 * mean(scores[task]):.1f}" if scores[task] else "" for task in all_.tasks])
    answered = ", ".join(all_.answered) or "there are none"
    return (f"Share of dense decoding's score, by the form in which records are asked:\n\n{table(by_form)}\n"
            "The shares are means over the tasks of which dense decoding answers at least half in that form: " + answered + ".\n"
            f'"of dense" is the mean over {", ".join(all_.asked)}. 95 %: its interval where records are drawn anew (bootstrap, by task '
            "and form).\nworse/better: records below and above dense; p: a sign test of that.\n\n"
            f"Mean score of 100 by task, over the same forms:\n\n{table(by_task)}")


def page(lines, title):
    """The same with pictures: score against budget, score against time per token, by task. Needs nothing else."""
    all_ = Gathered(lines)
    data = [[f"{line['form']} {line['task']}", line["policy"], line["budget"], line["score"], line["ms_per_token"], line["form"]]
            for line in lines]
    intervals = [[*at, *bootstrap_interval(all_.paired(at))] for at in all_.order if at[0] != "dense" and all_.paired(at)]
    script = lambda value: json.dumps(value, ensure_ascii=False).replace("</", "<\\/")
    made = PAGE
    for name, text in (("TITLE", title.replace("&", "&amp;").replace("<", "&lt;")), ("DATA", script(data)),
                       ("INTERVALS", script(intervals)), ("ANSWERED", script(list(all_.paired(("dense", 0)))))):
        made = made.replace(f"@{name}@", text)
    return made


PAGE = r"""<!doctype html><meta charset="utf-8"><title>kvpolicy-eval</title>
<style>body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1100px;color:#222}h1{font-size:1.4em}h2{font-size:1.1em;margin:1.6em 0 .3em}
svg{background:#fafafa;border:1px solid #ddd}text{font:11px system-ui,sans-serif}table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #eee}td:first-child,th:first-child{text-align:left}.charts{display:flex;flex-wrap:wrap;gap:16px}</style>
<h1>@TITLE@</h1><p>Scores are means over records, in percent; "all forms" is the mean over the tasks of which dense decoding answers at least half, each in each form in which people ask. Bars: 95 % of that mean, records drawn anew (bootstrap). ms/token is measured on this machine, in this run.</p>
<div id="page"></div><script>
const data = @DATA@;
const intervals = @INTERVALS@, answered = new Set(@ANSWERED@);
const tasks = [...new Set(data.map(d => d[0]))].sort(), policies = [...new Set(data.map(d => d[1]))].filter(p => p != "dense");
const budgets = [...new Set(data.map(d => d[2]))].filter(b => b > 0).sort((a, b) => a - b);
const colour = p => `hsl(${policies.indexOf(p) * 360 / policies.length},65%,42%)`;
const overTasks = (f, of) => { const v = of.map(t => mean(d => f(d) && d[0] == t, 3)).filter(v => v != null); return v.length ? 100 * v.reduce((a, b) => a + b) / v.length : null; };
const mean = (f, k) => { const v = data.filter(f).map(d => d[k]); return v.length ? v.reduce((a, b) => a + b) / v.length : null; };
const bar = (p, v) => { const i = intervals.find(i => i[0] == p && i[1] == v), d = dense(t => answered.has(t)); return i && d ? [i[2] * d, i[3] * d] : null; };
const page = document.getElementById("page");
const shown = t => t.replace(/[<&]/g, c => c == "<" ? "&lt;" : "&amp;");
function chart(name, points, xs, xname, dense) {
  const w = 520, h = 320, l = 42, b = 30, x0 = Math.min(...xs), x1 = Math.max(...xs);
  const x = v => l + 10 + (x1 > x0 ? (v - x0) / (x1 - x0) : .5) * (w - l - 130), y = v => h - b - v / 100 * (h - b - 14);
  let s = "";
  for (let v = 0; v <= 100; v += 20) s += `<line x1=${l} x2=${w - 110} y1=${y(v)} y2=${y(v)} stroke=#e4e4e4 /><text x=${l - 6} y=${y(v) + 4} text-anchor=end>${v}</text>`;
  for (const v of [...new Set(xs)].length <= 6 ? [...new Set(xs)] : [x0, (x0 + x1) / 2, x1]) s += `<text x=${x(v)} y=${h - 12} text-anchor=middle>${+v.toFixed(1)}</text>`;
  s += `<text x=${w - 110} y=${h - 2} text-anchor=end>${xname}</text>`;
  if (dense != null) s += `<line x1=${l} x2=${w - 110} y1=${y(dense)} y2=${y(dense)} stroke=#000 stroke-dasharray="4 3" /><text x=${w - 106} y=${y(dense) + 4}>dense</text>`;
  points.forEach(([p, line], i) => {
    line = line.filter(q => q[0] != null && q[1] != null);
    s += `<polyline fill=none stroke="${colour(p)}" stroke-width=1.6 points="${line.map(q => x(q[0]) + "," + y(q[1])).join(" ")}" />`;
    for (const q of line) if (q[2]) s += `<line x1=${x(q[0])} x2=${x(q[0])} y1=${y(q[2][0])} y2=${y(q[2][1])} stroke="${colour(p)}" stroke-opacity=.45 />`;
    for (const q of line) s += `<circle cx=${x(q[0])} cy=${y(q[1])} r=3 fill="${colour(p)}"><title>${shown(p)}: ${q[1].toFixed(1)} at ${q[0].toFixed(1)}</title></circle>`;
    s += `<text x=${w - 104} y=${34 + 14 * i} fill="${colour(p)}">${shown(p)}</text>`;
  });
  return `<div><h2>${shown(name)}</h2><svg width=${w} height=${Math.max(h, 44 + 14 * points.length)}>${s}</svg></div>`;
}
const of = (b, k, i) => policies.map(p => [p, budgets.map(v => [b(p, v), k(p, v), i ? i(p, v) : null])]);
const score = (p, v, f) => overTasks(d => d[1] == p && d[2] == v, tasks.filter(f));
const dense = f => overTasks(d => d[1] == "dense", tasks.filter(f));
const isAnswered = t => answered.has(t);
const ms = (p, v) => mean(d => d[1] == p && d[2] == v, 4);
const times = policies.flatMap(p => budgets.map(v => ms(p, v))).filter(v => v != null);
let out = '<div class=charts>' + chart("all forms: score against budget", of((p, v) => v, (p, v) => score(p, v, isAnswered), bar), budgets, "tokens", dense(isAnswered));
if (times.length) out += chart("all forms: score against ms/token", of(ms, (p, v) => score(p, v, isAnswered), bar), times, "ms/token", dense(isAnswered));
const forms = [...new Set(data.map(d => d[5]))], inForm = f => t => t.startsWith(f + " ");
for (const f of forms) out += chart(f, of((p, v) => v, (p, v) => score(p, v, inForm(f))), budgets, "tokens", dense(inForm(f)));
out += '</div><h2>Means</h2><table><tr><th>policy<th>budget' + tasks.map(t => "<th>" + shown(t)).join("") + "<th>all forms<th>ms/token</tr>";
for (const [p, v] of [["dense", 0], ...policies.flatMap(p => [0, ...budgets].map(v => [p, v]))]) {
  if (!data.some(d => d[1] == p && d[2] == v)) continue;
  const n = score(p, v, isAnswered);
  out += `<tr><td>${shown(p)}<td>${v || ""}` + tasks.map(t => { const m = score(p, v, u => u == t); return "<td>" + (m == null ? "" : m.toFixed(1)); }).join("") + `<td>${n == null ? "" : n.toFixed(1)}<td>${ms(p, v).toFixed(2)}</tr>`;
}
page.innerHTML = out + "</table>";
</script>
"""


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: kvpolicy-eval-report DIR")
    path = os.path.join(sys.argv[1], "results.jsonl")
    try:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]  # the last one may be cut
        text = summary(lines)
    except OSError as error:
        sys.exit(f"kvpolicy-eval-report: '{path}' can't be read: {error.strerror}")
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"kvpolicy-eval-report: '{path}' holds no results of kvpolicy-eval: {error!r}")
    if not lines:
        sys.exit(f"kvpolicy-eval-report: '{path}' is empty; run kvpolicy-eval first")
    title = "kvpolicy-eval: " + str(lines[0].get("data", ""))
    for name, content in (("summary.md", text), ("report.html", page(lines, title))):
        to = os.path.join(sys.argv[1], name)
        with open(to + ".part", "w", encoding="utf-8") as file:
            file.write(content)
        os.replace(to + ".part", to)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
