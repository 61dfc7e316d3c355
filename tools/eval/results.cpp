#include "results.hpp"

#include <kvpolicy/error.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include "read_file.hpp"
#include "text_table.hpp"

namespace kvpolicy {

using nlohmann::ordered_json;

eval_results::key eval_results::key_of(ordered_json const& line) {
  return {line.at("task").get<std::string>(), line.at("record").get<std::int64_t>(), line.at("policy").get<std::string>(),
          line.at("budget").get<std::int64_t>()};
}

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
        parameters_[key_of(one)] = one.at("parameters").get<std::string>();
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

bool eval_results::has(std::string const& task, std::int64_t record, std::string const& policy, std::int64_t budget,
                       std::string const& parameters) const {
  auto const found = parameters_.find({task, record, policy, budget});
  if (found == parameters_.end()) return false;
  if (found->second != parameters) {
    throw invalid_value("'" + path_ + "' was measured with " + policy + " being '" + found->second + "', not '" + parameters +
                        "'; give another --out");
  }
  return true;
}

void eval_results::add(ordered_json line) {
  line.update(about_);
  file_ << line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << '\n' << std::flush;
  if (!file_) throw error("'" + path_ + "' could not be written whole");
  parameters_[key_of(line)] = line.at("parameters").get<std::string>();
  lines_.push_back(std::move(line));
}

namespace {

struct mean {
  double sum = 0;
  std::int64_t count = 0;
  void add(double value) {
    sum += value;
    ++count;
  }
  double value() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

/// Of one policy and budget.
struct summary {
  std::map<std::string, mean> score;
  mean any;
  mean ms;
  mean read;
  mean choose;
};

}  // namespace

std::string summary_table(std::vector<ordered_json> const& lines) {
  std::vector<std::string> tasks;
  std::vector<std::pair<std::string, std::int64_t>> order;
  std::map<std::pair<std::string, std::int64_t>, summary> by_policy;
  for (ordered_json const& line : lines) {
    std::string const task = line.at("task");
    if (std::ranges::find(tasks, task) == tasks.end()) tasks.push_back(task);
    std::pair<std::string, std::int64_t> const at{line.at("policy"), line.at("budget")};
    if (!by_policy.contains(at)) order.push_back(at);
    summary& s = by_policy[at];
    s.score[task].add(line.at("score"));
    s.ms.add(line.at("ms_per_token"));
    s.read.add(line.at("tokens_read"));
    s.choose.add(line.at("choose_share"));
  }
  std::ranges::sort(tasks);
  std::ranges::stable_sort(order, [](auto const& a, auto const& b) { return (a.first == "dense") > (b.first == "dense"); });
  std::vector<std::vector<std::string>> cells{{"policy", "budget"}};
  for (std::string const& task : tasks) cells[0].push_back(task);
  for (char const* const name : {"needles", "of dense", "read", "ms/token", "choose"}) cells[0].emplace_back(name);
  double dense = 0;
  for (auto const& at : order) {
    summary& s = by_policy[at];
    std::vector<std::string> row{at.first, at.second == 0 ? "" : std::to_string(at.second)};
    mean needles;
    for (std::string const& task : tasks) {
      row.push_back(s.score.contains(task) ? fixed(100 * s.score[task].value(), 1) : "");
      if (task.starts_with("niah") && s.score.contains(task)) needles.add(100 * s.score[task].value());
    }
    if (at.first == "dense") dense = needles.value();
    row.push_back(fixed(needles.value(), 1));
    row.push_back(dense > 0 ? fixed(100 * needles.value() / dense, 0) + "%" : "");
    row.push_back(fixed(s.read.value(), 0));
    row.push_back(fixed(s.ms.value(), 2));
    row.push_back(at.first == "dense" ? "" : fixed(100 * s.choose.value(), 1) + "%");
    cells.push_back(std::move(row));
  }
  std::vector<bool> right(cells[0].size(), true);
  right[0] = false;
  return text_table(cells, right);
}

std::string html_report(std::vector<ordered_json> const& lines, std::string const& title) {
  ordered_json data = ordered_json::array();
  for (ordered_json const& line : lines) {
    data.push_back({line.at("task"), line.at("policy"), line.at("budget"), line.at("score"), line.at("ms_per_token")});
  }
  std::string json = data.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  for (std::size_t at = 0; (at = json.find("</", at)) != std::string::npos; at += 3) json.replace(at, 2, "<\\/");
  std::string safe;
  for (char const c : title) safe += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return R"html(<!doctype html><meta charset="utf-8"><title>kvpolicy-eval</title>
<style>body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1100px;color:#222}h1{font-size:1.4em}h2{font-size:1.1em;margin:1.6em 0 .3em}
svg{background:#fafafa;border:1px solid #ddd}text{font:11px system-ui,sans-serif}table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #eee}td:first-child,th:first-child{text-align:left}.charts{display:flex;flex-wrap:wrap;gap:16px}</style>
<h1>)html" +
         safe +
         R"html(</h1><p>Scores are means over records, in percent; "needles" are the niah tasks. ms/token is measured on this machine, in this run.</p>
<div id="page"></div><script>
const data = )html" +
         json + R"html(;
const tasks = [...new Set(data.map(d => d[0]))].sort(), policies = [...new Set(data.map(d => d[1]))].filter(p => p != "dense");
const budgets = [...new Set(data.map(d => d[2]))].filter(b => b > 0).sort((a, b) => a - b);
const colour = p => `hsl(${policies.indexOf(p) * 360 / policies.length},65%,42%)`;
const mean = (f, k) => { const v = data.filter(f).map(d => d[k]); return v.length ? v.reduce((a, b) => a + b) / v.length : null; };
const needles = t => t.startsWith("niah");
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
    for (const q of line) s += `<circle cx=${x(q[0])} cy=${y(q[1])} r=3 fill="${colour(p)}"><title>${shown(p)}: ${q[1].toFixed(1)} at ${q[0].toFixed(1)}</title></circle>`;
    s += `<text x=${w - 104} y=${34 + 14 * i} fill="${colour(p)}">${shown(p)}</text>`;
  });
  return `<div><h2>${shown(name)}</h2><svg width=${w} height=${Math.max(h, 44 + 14 * points.length)}>${s}</svg></div>`;
}
const of = (f, b, k) => policies.map(p => [p, budgets.map(v => [b(p, v), k(p, v)])]);
const score = (p, v, f) => { const m = mean(d => d[1] == p && d[2] == v && f(d[0]), 3); return m == null ? null : 100 * m; };
const dense = f => { const m = mean(d => d[1] == "dense" && f(d[0]), 3); return m == null ? null : 100 * m; };
const ms = (p, v) => mean(d => d[1] == p && d[2] == v, 4);
const times = policies.flatMap(p => budgets.map(v => ms(p, v))).filter(v => v != null);
let out = '<div class=charts>' + chart("needles: score against budget", of(0, (p, v) => v, (p, v) => score(p, v, needles)), budgets, "tokens", dense(needles));
if (times.length) out += chart("needles: score against ms/token", of(0, ms, (p, v) => score(p, v, needles)), times, "ms/token", dense(needles));
for (const t of tasks) out += chart(t, of(0, (p, v) => v, (p, v) => score(p, v, u => u == t)), budgets, "tokens", dense(u => u == t));
out += '</div><h2>Means</h2><table><tr><th>policy<th>budget' + tasks.map(t => "<th>" + shown(t)).join("") + "<th>needles<th>ms/token</tr>";
for (const [p, v] of [["dense", 0], ...policies.flatMap(p => [0, ...budgets].map(v => [p, v]))]) {
  if (!data.some(d => d[1] == p && d[2] == v)) continue;
  const n = score(p, v, needles);
  out += `<tr><td>${shown(p)}<td>${v || ""}` + tasks.map(t => { const m = score(p, v, u => u == t); return "<td>" + (m == null ? "" : m.toFixed(1)); }).join("") + `<td>${n == null ? "" : n.toFixed(1)}<td>${ms(p, v).toFixed(2)}</tr>`;
}
page.innerHTML = out + "</table>";
</script>
)html";
}

}  // namespace kvpolicy
