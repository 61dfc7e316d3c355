#include "results.hpp"

#include <kvpolicy/error.hpp>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <sstream>

#include "read_file.hpp"
#include "statistics.hpp"
#include "text_table.hpp"

namespace kvpolicy {

using nlohmann::ordered_json;

namespace {

measured_case case_of(ordered_json const& line) {
  return {line.at("task"), line.at("record"), line.at("form"), line.at("policy"), line.at("budget")};
}

}  // namespace

eval_results::eval_results(std::string const& directory, ordered_json about)
    : path_((std::filesystem::path(directory) / "results.jsonl").string()), about_(std::move(about)) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw invalid_value("--out '" + directory + "' can't be made: " + error.message());
  std::size_t whole = 0;
  if (std::filesystem::exists(path_)) {
    std::string const text = read_file(path_);
    std::size_t line = 1;
    for (std::size_t at = 0; at < text.size(); ++line) {
      std::size_t const end = text.find('\n', at);
      if (end == std::string::npos) break;  // cut while it was written
      try {
        ordered_json one = ordered_json::parse(text.substr(at, end - at));
        for (auto const& [name, value] : about_.items()) {
          if (one.at(name) != value) {
            throw invalid_value("'" + path_ + "' was measured with " + name + " " + one.at(name).dump() + ", not " +
                                value.dump() + "; give another --out");
          }
        }
        parameters_[case_of(one)] = one.at("parameters").get<std::string>();
        lines_.push_back(std::move(one));
      } catch (nlohmann::json::exception const& e) {
        throw invalid_value("'" + path_ + "', line " + std::to_string(line) + " is no result: " + e.what());
      }
      at = whole = end + 1;
    }
    std::filesystem::resize_file(path_, whole, error);
  }
  file_.open(path_, std::ios::app | std::ios::binary);
  if (!file_ || error) throw invalid_value("'" + path_ + "' can't be written");
}

bool eval_results::has(measured_case const& what, std::string const& parameters) const {
  auto const found = parameters_.find(what);
  if (found == parameters_.end()) return false;
  if (found->second != parameters) {
    throw invalid_value("'" + path_ + "' was measured with " + what.policy + " being '" + found->second + "', not '" +
                        parameters + "'; give another --out");
  }
  return true;
}

void eval_results::add(ordered_json line) {
  line.update(about_);
  file_ << line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << '\n' << std::flush;
  if (!file_) throw error("'" + path_ + "' could not be written whole");
  parameters_[case_of(line)] = line.at("parameters").get<std::string>();
  lines_.push_back(std::move(line));
}

namespace {

constexpr double is_answered = .5;  ///< by dense decoding: what a task must be for its scores to tell of a policy

struct mean {
  double sum = 0;
  std::int64_t count = 0;
  void add(double value) {
    sum += value;
    ++count;
  }
  double value() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

constexpr char const* benchmarks_form = "prefix";

/// Of one policy and budget.
struct summary {
  std::map<std::string, mean> score;             ///< by task, over the forms that count
  std::map<std::string, paired_scores> by_form;  ///< of the tasks that dense decoding answers in that form
  mean ms;
  mean read;
  mean choose;
};

using policy_and_budget = std::pair<std::string, std::int64_t>;

/// All lines by policy and budget.
struct gathered {
  std::vector<std::string> tasks;
  std::vector<std::string> forms;        ///< as they came
  std::vector<std::string> asked;        ///< those whose mean is the result: all but the benchmark's, where there are others
  std::vector<std::string> answered;     ///< tasks that dense decoding answers, and in which of those forms
  std::vector<policy_and_budget> order;  ///< as they came, dense first
  std::map<policy_and_budget, summary> by_policy;
};

void add_new(std::vector<std::string>& to, std::string const& name) {
  if (std::ranges::find(to, name) == to.end()) to.push_back(name);
}

gathered gather(std::vector<ordered_json> const& lines) {
  gathered made;
  std::map<measured_case, double> dense;
  std::map<std::pair<std::string, std::string>, mean> of_dense;  // by form and task
  for (ordered_json const& line : lines) {
    add_new(made.tasks, line.at("task"));
    add_new(made.forms, line.at("form"));
    if (line.at("policy") != "dense") continue;
    dense[case_of(line)] = line.at("score");
    of_dense[{line.at("form"), line.at("task")}].add(line.at("score"));
  }
  std::ranges::sort(made.tasks);
  made.asked = made.forms;
  if (made.asked.size() > 1) std::erase(made.asked, benchmarks_form);
  auto const is_asked = [&](std::string const& form) { return std::ranges::find(made.asked, form) != made.asked.end(); };
  for (std::string const& task : made.tasks) {
    std::string in;
    for (std::string const& form : made.asked) {
      if (of_dense[{form, task}].value() >= is_answered) in += (in.empty() ? "" : ", ") + form;
    }
    if (!in.empty()) made.answered.push_back(task + " (" + in + ")");
  }
  for (ordered_json const& line : lines) {
    measured_case reference = case_of(line);
    policy_and_budget const at{reference.policy, reference.budget};
    if (!made.by_policy.contains(at)) made.order.push_back(at);
    summary& s = made.by_policy[at];
    if (is_asked(reference.form)) s.score[reference.task].add(line.at("score"));
    reference.policy = "dense";
    reference.budget = 0;
    auto const found = dense.find(reference);
    if (found != dense.end() && of_dense[{reference.form, reference.task}].value() >= is_answered)
      s.by_form[reference.form][reference.task].push_back({line.at("score"), found->second});
    s.ms.add(line.at("ms_per_token"));
    s.read.add(line.at("tokens_read"));
    s.choose.add(line.at("choose_share"));
  }
  std::ranges::stable_sort(made.order,
                           [](auto const& a, auto const& b) { return (a.first == "dense") > (b.first == "dense"); });
  return made;
}

/// Of all forms that count: each task in each form by itself.
paired_scores of_asked_forms(gathered const& all, summary const& s) {
  paired_scores made;
  for (auto const& [form, tasks] : s.by_form) {
    if (std::ranges::find(all.asked, form) == all.asked.end()) continue;
    for (auto const& [task, scores] : tasks) made[form + " " + task] = scores;
  }
  return made;
}

std::vector<std::string> beginning_of_row(policy_and_budget const& at) {
  return {at.first, at.second == 0 ? "" : std::to_string(at.second)};
}

std::string percent(double share) { return fixed(100 * share, 0) + "%"; }

/// Columns of figures, but for the first.
std::string table_of(std::vector<std::vector<std::string>> const& cells) {
  std::vector<bool> right(cells[0].size(), true);
  right[0] = false;
  return text_table(cells, right);
}

std::string table_by_form(gathered const& all) {
  std::vector<std::vector<std::string>> cells{{"policy", "budget", "of dense", "95 %", "worse/better", "p"}};
  for (std::string const& form : all.forms) cells[0].push_back(form);
  for (char const* const name : {"read", "ms/token", "choose"}) cells[0].emplace_back(name);
  for (policy_and_budget const& at : all.order) {
    summary const& s = all.by_policy.at(at);
    std::vector<std::string> row = beginning_of_row(at);
    paired_scores const paired = of_asked_forms(all, s);
    bool const is_dense = at.first == "dense";
    if (is_dense || paired.empty()) {
      row.resize(row.size() + 4);
    } else {
      interval const likely = bootstrap_interval(paired);
      sign_test const signs = signs_against_dense(paired);
      row.push_back(percent(share_of_dense(paired)));
      row.push_back(fixed(100 * likely.low, 0) + "-" + fixed(100 * likely.high, 0));
      row.push_back(std::to_string(signs.worse) + "/" + std::to_string(signs.better));
      row.push_back(fixed(signs.p, 3));
    }
    for (std::string const& form : all.forms) {
      row.push_back(is_dense || !s.by_form.contains(form) ? "" : percent(share_of_dense(s.by_form.at(form))));
    }
    row.push_back(fixed(s.read.value(), 0));
    row.push_back(fixed(s.ms.value(), 2));
    row.push_back(is_dense ? "" : fixed(100 * s.choose.value(), 1) + "%");
    cells.push_back(std::move(row));
  }
  return table_of(cells);
}

std::string table_by_task(gathered const& all) {
  std::vector<std::vector<std::string>> cells{{"policy", "budget"}};
  for (std::string const& task : all.tasks) cells[0].push_back(task);
  for (policy_and_budget const& at : all.order) {
    summary const& s = all.by_policy.at(at);
    std::vector<std::string> row = beginning_of_row(at);
    for (std::string const& task : all.tasks)
      row.push_back(s.score.contains(task) ? fixed(100 * s.score.at(task).value(), 1) : "");
    cells.push_back(std::move(row));
  }
  return table_of(cells);
}

std::string joined(std::vector<std::string> const& names) {
  std::string text;
  for (std::string const& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::string summary_table(std::vector<ordered_json> const& lines) {
  gathered const all = gather(lines);
  std::string const answered = all.answered.empty() ? "there are none" : joined(all.answered);
  return "Share of dense decoding's score, by the form in which records are asked:\n\n" + table_by_form(all) +
         "\nThe shares are means over the tasks of which dense decoding answers at least half in that form: " + answered +
         ".\n\"of dense\" is the mean over " + joined(all.asked) +
         ". 95 %: its interval where records are drawn anew (bootstrap, by task and form).\nworse/better: records below and "
         "above dense; p: a sign test of that.\n\nMean score of 100 by task, over the same forms:\n\n" +
         table_by_task(all);
}

std::string html_report(std::vector<ordered_json> const& lines, std::string const& title) {
  ordered_json data = ordered_json::array();
  gathered const all = gather(lines);
  for (ordered_json const& line : lines) {
    measured_case const what = case_of(line);
    data.push_back(
        {what.form + " " + what.task, what.policy, what.budget, line.at("score"), line.at("ms_per_token"), what.form});
  }
  std::vector<std::string> answered;
  if (all.by_policy.contains({"dense", 0})) {
    for (auto const& [task, scores] : of_asked_forms(all, all.by_policy.at({"dense", 0}))) answered.push_back(task);
  }
  ordered_json intervals = ordered_json::array();
  for (policy_and_budget const& at : all.order) {
    paired_scores const paired = of_asked_forms(all, all.by_policy.at(at));
    if (at.first == "dense" || paired.empty()) continue;
    interval const likely = bootstrap_interval(paired);
    intervals.push_back({at.first, at.second, likely.low, likely.high});
  }
  auto const script = [](ordered_json const& value) {
    std::string json = value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    for (std::size_t at = 0; (at = json.find("</", at)) != std::string::npos; at += 3) json.replace(at, 2, "<\\/");
    return json;
  };
  std::string safe;
  for (char const c : title) safe += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return R"html(<!doctype html><meta charset="utf-8"><title>kvpolicy-eval</title>
<style>body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1100px;color:#222}h1{font-size:1.4em}h2{font-size:1.1em;margin:1.6em 0 .3em}
svg{background:#fafafa;border:1px solid #ddd}text{font:11px system-ui,sans-serif}table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #eee}td:first-child,th:first-child{text-align:left}.charts{display:flex;flex-wrap:wrap;gap:16px}</style>
<h1>)html" +
         safe +
         R"html(</h1><p>Scores are means over records, in percent; "all forms" is the mean over the tasks of which dense decoding answers at least half, each in each form in which people ask. Bars: 95 % of that mean, records drawn anew (bootstrap). ms/token is measured on this machine, in this run.</p>
<div id="page"></div><script>
const data = )html" +
         script(data) + R"html(;
const intervals = )html" +
         script(intervals) + R"html(, answered = new Set()html" + script(answered) + R"html();
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
)html";
}

}  // namespace kvpolicy
