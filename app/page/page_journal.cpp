#include "page_journal.hpp"

#include <algorithm>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_text.hpp>
#include <utility>

#include "page_call.hpp"

namespace ipybox::app {
namespace {

json::object event_of(std::string_view type) {
    json::object event;
    event["type"] = type;
    return event;
}

}  // namespace

json::object PageJournal::state(Millis now) const {
    auto event = event_of("state");
    event["now"] = now;
    json::array pending, history, cells;
    for (const auto& id : order_) {
        const auto& one = pending_.at(id);
        if (!one.left) pending.emplace_back(one.shown);
    }
    for (const auto& one : done_) history.emplace_back(shown(one));
    for (const auto& one : cells_) cells.emplace_back(shown(one));
    event["pending"] = std::move(pending);
    event["history"] = std::move(history);
    event["cells"] = std::move(cells);
    return event;
}

void PageJournal::ask(const ToolCall& call, Millis now, std::optional<Millis> until,
                      json::object extra) {
    flush();                // what was printed before the call stands before it
    drop_pending(call.id);  // one that is judged anew
    Pending one;
    one.call = call;
    one.shown = shown_call(call);
    one.shown["asked"] = now;
    one.shown["until"] = nullptr;
    if (until) one.shown["until"] = *until;
    one.shown["file"] = file_change(call);
    one.shown["previous"] = previous(call);
    for (auto& [key, value] : extra) one.shown[key] = std::move(value);
    one.memory = detail::memory_size(one.shown) + detail::memory_size(call.sent_arguments());
    waiting_memory_ += one.memory;
    auto event = event_of("pending");
    event["call"] = one.shown;
    pending_.emplace(call.id, std::move(one));
    order_.push_back(call.id);
    tell_(std::move(event));
}

void PageJournal::drop_pending(const std::string& id) {
    const auto found = pending_.find(id);
    if (found == pending_.end()) return;
    waiting_memory_ -= found->second.memory;
    pending_.erase(found);
    order_.erase(std::remove(order_.begin(), order_.end(), id), order_.end());
}

void PageJournal::leave(const std::string& id, const std::optional<Decision>& answer) {
    const auto found = pending_.find(id);
    if (found == pending_.end()) return;
    found->second.left = true;
    if (answer) found->second.answer = words_of(*answer);
}

void PageJournal::forget_left(const std::string& id, Millis now, const std::string& why) {
    const auto found = pending_.find(id);
    if (found == pending_.end() || !found->second.left) return;
    const auto call = found->second.call;
    Decision unknown(Verdict::deny, why);
    unknown.by = "nobody";
    decide(call, nullptr, unknown, now);
}

void PageJournal::decide(const ToolCall& call, const json::object* edited, const Decision& decision,
                         Millis now) {
    Done done;
    done.call = call;
    done.call.server_tools = nullptr;
    if (const auto found = pending_.find(call.id); found != pending_.end()) {
        done.shown_call = std::move(found->second.shown);
        drop_pending(call.id);
        // Needed by whoever decides; too much to keep for all.
        done.shown_call.erase("file");
        done.shown_call.erase("previous");
    } else {
        done.shown_call = shown_call(call);
        done.shown_call["asked"] = now;
    }
    done.words = words_of(decision);
    auto& told = done.shown;
    told["verdict"] = decision.verdict == Verdict::allow ? "allow" : "deny";
    told["by"] = detail::repair_utf8(decision.by.empty() ? "policy" : decision.by);
    told["reason"] = detail::repair_utf8(decision.reason);
    told["expired"] = decision.expired;
    told["edited"] = nullptr;
    if (edited) told["edited"] = shown_arguments(*edited);
    told["at"] = now;
    told["outcome"] = nullptr;
    done.memory = detail::memory_size(done.shown_call) + detail::memory_size(told) +
                  detail::memory_size(call.sent_arguments());
    auto event = event_of("settled");
    event["id"] = call.id;
    event["done"] = shown(done);
    done_memory_ += done.memory;
    done_.push_back(std::move(done));
    while (done_.size() > limits_.calls ||
           (done_.size() > 1 && done_memory_ > limits_.calls_memory)) {
        done_memory_ -= done_.front().memory;
        done_.pop_front();
    }
    tell_(std::move(event));
}

void PageJournal::end(const std::string& call, std::string_view outcome, Millis took) {
    const auto found = std::find_if(done_.rbegin(), done_.rend(),
                                    [&](const Done& one) { return one.call.id == call; });
    if (found != done_.rend()) found->shown["outcome"] = outcome;
    auto event = event_of("outcome");
    event["id"] = call;
    event["outcome"] = outcome;
    event["ms"] = took;
    tell_(std::move(event));
}

void PageJournal::begin_cell(const std::string& session, const std::string& id,
                             const std::string& code, Millis now) {
    flush();
    Cell cell;
    cell.id = id;
    cell.session = session;
    cell.code = detail::repair_utf8(code);
    cell.began = now;
    auto event = event_of("cell");
    event["cell"] = shown(cell);
    cells_.push_back(std::move(cell));
    while (cells_.size() > limits_.cells && cells_.front().ended) {
        for (const auto& piece : cells_.front().output)
            if (!piece.image.empty()) images_memory_ -= detail::memory_size(piece.image);
        cells_.pop_front();
    }
    tell_(std::move(event));
}

PageJournal::Cell* PageJournal::find(const std::string& id) {
    const auto found =
        std::find_if(cells_.rbegin(), cells_.rend(), [&](const Cell& one) { return one.id == id; });
    return found == cells_.rend() ? nullptr : &*found;
}

void PageJournal::add_text(Cell& cell, Piece piece) {
    cell.text += piece.text.size();
    const bool joins = !cell.output.empty() && cell.output.back().image.empty() &&
                       cell.output.back().is_stderr == piece.is_stderr &&
                       cell.output.back().text.size() < 4096;
    if (joins)
        cell.output.back().text += piece.text;
    else
        cell.output.push_back(std::move(piece));
    for (auto at = cell.output.begin(); at != cell.output.end() && cell.text > limits_.cell_text;) {
        cell.text -= at->text.size();
        cell.cut = true;
        at = at->image.empty() ? cell.output.erase(at) : at + 1;
    }
}

void PageJournal::add_image(Cell& cell, Piece piece) {
    images_memory_ += detail::memory_size(piece.image);
    cell.output.push_back(std::move(piece));
    for (auto& one : cells_)
        for (auto at = one.output.begin();
             at != one.output.end() && images_memory_ > limits_.images;) {
            if (at->image.empty()) {
                ++at;
                continue;
            }
            images_memory_ -= detail::memory_size(at->image);
            one.cut = true;
            at = one.output.erase(at);
        }
}

void PageJournal::print(const std::string& id, std::string_view text, bool is_stderr) {
    auto* cell = find(id);
    if (!cell || text.empty()) return;
    // Of a flood the newest is shown.
    if (text.size() > limits_.burst) {
        cell->untold_left_out += text.size() - limits_.burst;
        cell->cut = true;
        text.remove_prefix(text.size() - limits_.burst);
    }
    while (!cell->untold.empty() && cell->untold_size + text.size() > limits_.burst) {
        const auto size = cell->untold.front().text.size();
        cell->untold_left_out += size;
        cell->untold_size -= size;
        cell->cut = true;
        cell->untold.pop_front();
    }
    cell->untold_size += text.size();
    if (!cell->untold.empty() && cell->untold.back().is_stderr == is_stderr &&
        cell->untold.back().text.size() < 4096)
        cell->untold.back().text += text;
    else
        cell->untold.push_back({std::string(text), is_stderr, {}});
}

bool PageJournal::flush() {
    bool any = false;
    for (auto& cell : cells_) {
        if (cell.untold.empty()) continue;
        any = true;
        cell.untold_size = 0;
        if (const auto left_out = std::exchange(cell.untold_left_out, 0); left_out > 0)
            cell.untold.push_front(
                {"[" + std::to_string(left_out) + " bytes of output are not shown here]\n",
                 true,
                 {}});
        for (auto& piece : std::exchange(cell.untold, {})) {
            piece.text = detail::repair_utf8(piece.text);
            auto event = event_of("output");
            event["cell"] = cell.id;
            event["stderr"] = piece.is_stderr;
            event["text"] = piece.text;
            add_text(cell, std::move(piece));
            tell_(std::move(event));
        }
    }
    return any;
}

void PageJournal::display(const std::string& id, const json::object& bundle) {
    auto* cell = find(id);
    if (!cell) return;
    const auto* plain = detail::find_string(bundle, "text/plain");
    json::object image;
    for (const char* mime :
         {"image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"}) {
        const auto* data = detail::find_string(bundle, mime);
        if (!data || !image.empty()) continue;
        image["mime"] = mime;
        image["data"] = *data;
        image["text"] = plain ? *plain : json::string();
    }
    if (image.empty()) {
        if (plain) print(id, std::string(*plain) + "\n", false);
        return;
    }
    flush();
    if (detail::memory_size(image) > limits_.images) {
        cell->cut = true;
        print(id, "[an image is too large to be shown here]\n", true);
        return;
    }
    auto event = image;
    event["type"] = "display";
    event["cell"] = id;
    add_image(*cell, Piece{{}, false, std::move(image)});
    tell_(std::move(event));
}

void PageJournal::end_cell(const std::string& id, std::string_view outcome, Millis now,
                           Millis took) {
    flush();
    if (auto* cell = find(id)) {
        cell->outcome = outcome;
        cell->ended = now;
    }
    auto event = event_of("cell_end");
    event["cell"] = id;
    event["outcome"] = outcome;
    event["ms"] = took;
    tell_(std::move(event));
}

json::value PageJournal::previous(const ToolCall& call) const {
    for (auto one = done_.rbegin(); one != done_.rend(); ++one) {
        if (one->call.server != call.server || one->call.tool != call.tool ||
            one->call.origin != call.origin || one->call.id == call.id)
            continue;
        json::object shown;
        shown["id"] = one->call.id;
        shown["asked"] = one->shown_call.at("asked");
        shown["verdict"] = one->shown.at("verdict");
        shown["arguments"] = one->shown_call.at("arguments");
        return shown;
    }
    return nullptr;
}

std::string PageJournal::words_of(const Decision& decision) {
    return (decision.verdict == Verdict::allow ? "allowed by " : "denied by ") +
           detail::repair_utf8(decision.by.empty() ? "policy" : decision.by);
}

bool PageJournal::waits(const std::string& id) const { return pending_.contains(id); }

std::string PageJournal::settled_by(const std::string& id) const {
    if (const auto waiting = pending_.find(id); waiting != pending_.end())
        return waiting->second.answer;
    for (auto one = done_.rbegin(); one != done_.rend(); ++one)
        if (one->call.id == id) return one->words;
    return {};
}

json::object PageJournal::shown(const Piece& piece) {
    if (!piece.image.empty()) return piece.image;
    json::object one;
    one["stderr"] = piece.is_stderr;
    one["text"] = piece.text;
    return one;
}

json::object PageJournal::shown(const Cell& cell) {
    json::object one;
    one["id"] = cell.id;
    one["session"] = cell.session;
    one["code"] = cell.code;
    one["began"] = cell.began;
    one["ended"] = nullptr;
    one["outcome"] = nullptr;
    if (cell.ended) {
        one["ended"] = *cell.ended;
        one["outcome"] = cell.outcome;
    }
    json::array output;
    for (const auto& piece : cell.output) output.emplace_back(shown(piece));
    one["output"] = std::move(output);
    one["cut"] = cell.cut;
    return one;
}

json::object PageJournal::shown(const Done& done) {
    json::object one = done.shown;
    one["call"] = done.shown_call;
    return one;
}

}  // namespace ipybox::app
