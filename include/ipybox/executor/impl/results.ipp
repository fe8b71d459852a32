#pragma once
#include <ipybox/executor/code_executor.hpp>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/python_source.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/executor/impl/session.hpp>
#include <set>
#include <string_view>

namespace ipybox {

IPYBOX_DECL std::optional<std::string> CodeExecutionResult::value_repr() const {
    if (!value_at_ || *value_at_ >= displays.size()) return std::nullopt;
    const auto* plain = detail::find_string(displays[*value_at_], "text/plain");
    if (plain == nullptr) return std::nullopt;
    return detail::repair_utf8(*plain);
}

IPYBOX_DECL std::size_t CodeExecutor::Run::weight(const ExecutionEvent& event) {
    std::size_t size = sizeof event;
    if (const auto* chunk = std::get_if<CodeExecutionChunk>(&event))
        size += chunk->text.size();
    else if (const auto* shown = std::get_if<CodeExecutionDisplay>(&event))
        size += detail::memory_size(shown->data) + detail::memory_size(shown->metadata);
    else if (const auto* request = std::get_if<ApprovalRequest>(&event))
        size += detail::memory_size(request->tool_args());
    return size;
}

IPYBOX_DECL std::uint64_t CodeExecutor::Session::Output::limit() const {
    return run.asked == Run::Asked::host ? max_answer : session.options.max_output;
}

IPYBOX_DECL void CodeExecutor::Session::Output::add_error(const PythonError& error) {
    constexpr std::size_t max_name = 1u << 10, max_value = 64u << 10;
    auto name = detail::bounded_text(error.name, max_name);
    auto value = detail::bounded_text(error.value, max_value);
    if (!fits(name.size() + value.size())) return;
    result.error_name = std::move(name);
    result.error_value = std::move(value);
}

IPYBOX_DECL void CodeExecutor::Session::Output::keep(Display display) {
    const auto& id = display.display_id;
    const auto known = shown.find(id);
    if (display.is_update && known != shown.end()) {
        result.displays[known->second] = std::move(display.data);
        return;
    }
    if (display.is_result) result.value_at_ = result.displays.size();
    if (!id.empty() && (known != shown.end() || shown.size() < max_shown))
        shown[id] = result.displays.size();
    result.displays.push_back(std::move(display.data));
}

IPYBOX_DECL bool CodeExecutor::Session::Output::take_answer(KernelOutput item) {
    if (std::holds_alternative<Done>(item) || std::holds_alternative<PythonError>(item))
        return take(std::move(item));
    std::size_t more = sizeof item;
    auto* display = std::get_if<Display>(&item);
    if (display)
        more += detail::memory_size(display->data) + detail::memory_size(display->metadata);
    else if (const auto* stream = std::get_if<Stream>(&item))
        more += stream->text.size();
    if (!fits(more)) return false;
    if (display && display->data.contains(answer_type)) {
        result.displays.push_back(std::move(display->data));
    } else {
        session.unclaimed.push_back(std::move(item));
        session.unclaimed_size += more;
    }
    return false;
}

IPYBOX_DECL awaitable<std::unique_ptr<sandbox_kit::WorkspaceSnapshot>>
CodeExecutor::Session::look_at_workspace(std::shared_ptr<Session> self) {
    std::unique_ptr<sandbox_kit::WorkspaceSnapshot> seen;
    if (!self->shares_files()) co_return seen;
    try {
        // A quota of the workspace changes the time of every file's last change.
        seen = std::make_unique<sandbox_kit::WorkspaceSnapshot>(
            self->workspace, !self->kernel_limits.workspace_size);
        while (seen->step()) co_await asio::post(asio::use_awaitable);
    } catch (const Error& error) {
        self->host.logger(LogLevel::warning, "changed files will not be told: " + error.detail());
        seen.reset();
    }
    co_return seen;
}

IPYBOX_DECL awaitable<void> CodeExecutor::Session::measure(
    std::shared_ptr<Session> self, CodeExecutionResult& result, const Kernel& from,
    std::unique_ptr<sandbox_kit::WorkspaceSnapshot> before) {
    auto& found = result.measures.emplace();
    if (const auto process = from.process(); process && !process->exit_status())
        found.peak_memory = process->statistics().peak_memory;
    if (found.peak_memory == 0U) found.peak_memory.reset();  // it has just ended
    std::unique_ptr<sandbox_kit::WorkspaceSnapshot> after;
    if (before) after = co_await look_at_workspace(self);
    found.files_complete =
        !self->shares_files() || (after && before->complete() && after->complete());
    if (!after) co_return;
    using Change = CodeExecutionFile::Change;  // in the words of the snapshot's
    std::set<std::string> own;
    for (const auto& image : result.images)
        own.insert(image.lexically_relative(self->workspace).string());
    std::size_t count = 0;
    before->compare(*after, [&](const std::string& path, auto change) {
        if (own.contains(path)) return;
        if (++count <= CodeExecutionMeasures::max_files)
            found.files.push_back({path, static_cast<Change>(change)});
    });
    if (count > found.files.size()) found.files_complete = false;
    std::sort(found.files.begin(), found.files.end(),
              [](const auto& one, const auto& other) { return one.path < other.path; });
}

IPYBOX_DECL awaitable<std::vector<CodeVariable>> CodeExecutor::variables() {
    auto session = session_;
    co_return co_await Session::variables(session);
}

IPYBOX_DECL awaitable<json::object> CodeExecutor::Session::told(std::shared_ptr<Session> self,
                                                                std::string module,
                                                                std::string arguments,
                                                                std::string what, Duration limit) {
    ExecutionOptions how;
    how.timeout = limit;
    how.silent = true;
    std::string code =
        "__import__('ipybox_kernel." + module + "', fromlist=['tell']).tell(" + arguments + ")";
    auto result = co_await run_to_end(self, std::move(code), how, Run::Asked::host);
    if (result.status == Status::output_limit)
        throw Error(errc::output_limit,
                    "the kernel's answer, with what threads of earlier cells "
                    "print meanwhile, exceeded " +
                        std::to_string(max_answer) +
                        " bytes; the next execution shows what they printed");
    if (result.status != Status::error) result.ok_or_throw();
    const auto* answer =
        result.displays.empty() ? nullptr : detail::object_of(result.displays.back(), answer_type);
    constexpr std::size_t longest = 4u << 10;
    const auto why = detail::bounded_text(result.error, longest);
    if (!result.ok() || answer == nullptr)
        throw Error(errc::kernel_protocol,
                    "the kernel does not say " + what +
                        "; code may have changed what says them: reset() starts a new kernel" +
                        (why.empty() ? why : "\n" + why));
    co_return *answer;
}

IPYBOX_DECL awaitable<std::vector<CodeVariable>> CodeExecutor::Session::variables(
    std::shared_ptr<Session> self) {
    const auto answer =
        co_await told(self, "variables", "", "its variables", std::chrono::seconds(10));
    co_return variables_in(answer);
}

IPYBOX_DECL awaitable<CodeCompletions> CodeExecutor::complete(std::string code) {
    auto session = session_;
    co_return co_await Session::complete(session, std::move(code));
}

IPYBOX_DECL awaitable<CodeCompletions> CodeExecutor::Session::complete(
    std::shared_ptr<Session> self, std::string code) {
    constexpr std::size_t longest = 64u << 10;
    const auto left_out = code.size() > longest ? code.size() - longest : 0;
    auto text = detail::repair_utf8(std::string_view(code).substr(left_out));
    auto arguments = detail::python_string(text);
    const auto answer = co_await told(self, "completion", std::move(arguments), "what may follow",
                                      std::chrono::seconds(2));
    co_return completions_in(answer, code);
}

IPYBOX_DECL CodeCompletions CodeExecutor::Session::completions_in(const json::object& answer,
                                                                  std::string_view code) {
    constexpr std::size_t longest = 1u << 10;
    CodeCompletions found;
    found.start = code.size();
    const auto typed = detail::string_of(answer, "typed");
    const auto* list = answer.if_contains("matches");
    if (!code.ends_with(typed) || list == nullptr || !list->is_array()) return found;
    found.start -= typed.size();
    std::set<std::string_view> seen;
    for (const auto& item : list->get_array()) {
        const auto* text = item.if_string();
        if (found.matches.size() == CodeCompletions::max_matches) break;
        if (text == nullptr || text->size() > longest) continue;
        const std::string_view match = *text;
        if (match.size() > typed.size() && match.starts_with(typed) &&
            detail::printable(match) == match && seen.insert(match).second)
            found.matches.emplace_back(match);
    }
    return found;
}

IPYBOX_DECL std::vector<CodeVariable> CodeExecutor::Session::variables_in(
    const json::object& answer) {
    constexpr std::size_t most = 1000, longest = 1u << 10;
    std::vector<CodeVariable> found;
    const auto* list = answer.if_contains("variables");
    if (list == nullptr || !list->is_array()) return found;
    for (const auto& item : list->get_array()) {
        const auto* fields = item.if_array();
        if (found.size() == most) break;
        if (fields == nullptr || fields->size() != 4) continue;
        const auto text = [&](std::size_t at) {
            const auto* given = (*fields)[at].if_string();
            return detail::bounded_text(given ? std::string_view(*given) : std::string_view(),
                                        longest);
        };
        CodeVariable variable{text(0), text(1), std::nullopt, text(3)};
        if (variable.name.empty()) continue;
        const auto& size = (*fields)[2];
        if (const auto* number = size.if_int64(); number && *number >= 0)
            variable.size = static_cast<std::uint64_t>(*number);
        else if (const auto* large = size.if_uint64())
            variable.size = *large;
        found.push_back(std::move(variable));
    }
    return found;
}

}  // namespace ipybox
