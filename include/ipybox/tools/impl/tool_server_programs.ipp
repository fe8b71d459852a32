#pragma once
// Programs that code wants to start, asked about by the launcher's broker; see launcher/broker.hpp.
#include <sys/socket.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <ipybox/compilation.hpp>
#include <ipybox/detail/received_files.hpp>
#include <ipybox/tools/impl/tool_server_state.hpp>
#include <ipybox/tools/program_question.hpp>
#include <ipybox/tools/tool_server.hpp>

namespace ipybox {

struct ToolServer::AskedProgram {
    explicit AskedProgram(const asio::any_io_executor& executor) : answer(executor) {}
    asio::local::stream_protocol::socket answer;
    UniqueFd question, copy, input;
};

IPYBOX_DECL void ToolServer::answer_programs(UniqueFd questions) {
    asio::co_spawn(state_->host.executor, hear_programs(state_, std::move(questions)),
                   asio::detached);
}

IPYBOX_DECL ToolServer::AskedProgramPtr ToolServer::receive_program(const Impl& state, int socket,
                                                                    bool& ended) {
    constexpr char has_copy = 1, has_input = 2, plain = '@';
    char byte = 0;
    UniqueFd files[4];
    const auto received = detail::receive_files(socket, &byte, 1, files);
    ended = received.ended();
    if (received.count == 0) return nullptr;
    const bool copy = (byte & has_copy) != 0, input = (byte & has_input) != 0;
    const std::size_t wanted = 2u + (copy ? 1 : 0) + (input ? 1 : 0);
    if ((byte & ~(has_copy | has_input)) != plain || received.count != wanted || received.cut)
        return nullptr;
    auto asked = std::make_shared<AskedProgram>(state.host.executor);
    boost::system::error_code error;
    asked->answer.assign(asio::local::stream_protocol(), files[0].get(), error);
    if (error) return nullptr;
    files[0].release();
    asked->question = std::move(files[1]);
    if (copy) asked->copy = std::move(files[2]);
    if (input) asked->input = std::move(files[copy ? 3 : 2]);
    return asked;
}

IPYBOX_DECL awaitable<void> ToolServer::hear_programs(ImplPtr state, UniqueFd questions) {
    asio::local::stream_protocol::socket socket(state->host.executor);
    boost::system::error_code failure;
    socket.assign(asio::local::stream_protocol(), questions.get(), failure);
    if (failure) co_return;
    questions.release();
    for (;;) {
        const auto [error] = co_await socket.async_wait(asio::socket_base::wait_read, as_result);
        if (error || state->closed) co_return;
        bool ended = false;
        auto asked = receive_program(*state, socket.native_handle(), ended);
        if (ended) co_return;
        // Whoever is not answered starts nothing.
        if (asked)
            asio::co_spawn(state->host.executor, answer_program(state, std::move(asked)),
                           asio::detached);
    }
}

IPYBOX_DECL void ToolServer::send_answer(AskedProgram& asked, std::string_view text) {
    const int socket = asked.answer.native_handle();
    ::send(socket, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    ::shutdown(socket, SHUT_WR);
}

IPYBOX_DECL awaitable<void> ToolServer::judge_program(ImplPtr state, ToolCall request,
                                                      std::optional<Decision>& decision) {
    // What fails is no yes.
    try {
        auto judged = co_await judge(state, std::move(request));
        decision.emplace(std::move(judged));
    } catch (const std::exception& error) {
        decision.emplace(Verdict::deny, error.what());
    }
}

IPYBOX_DECL awaitable<void> ToolServer::hung_up(AskedProgramPtr asked) {
    co_await asked->answer.async_wait(asio::socket_base::wait_read, as_result);
}

IPYBOX_DECL awaitable<void> ToolServer::unwanted(ImplPtr state, AskedProgramPtr asked) {
    const ServerPtr none;
    auto over = withdrawal(state, state->turn, none);
    auto gone = hung_up(asked);
    co_await ends_first(std::move(over), std::move(gone));
}

IPYBOX_DECL awaitable<void> ToolServer::answer_program(ImplPtr state, AskedProgramPtr asked) {
    const auto refuse = [&](std::string why) {
        why = state->secrets.hide(std::move(why));
        why.resize(detail::utf8_border(why, 900));
        send_answer(*asked, "n" + why);
    };
    // Each takes descriptors of this process.
    constexpr int most_at_once = 64;
    struct Counted {
        explicit Counted(int& all) : count(all) { ++count; }
        Counted(const Counted&) = delete;
        Counted& operator=(const Counted&) = delete;
        ~Counted() { --count; }
        int& count;
    } counted(state->programs);
    if (state->programs > most_at_once) {
        refuse("too many programs are asked about at once: start fewer in parallel");
        co_return;
    }
    if (!state->active && !state->options.background_calls) {
        refuse(
            "no code is being executed: programs can be started while a cell runs, not after it");
        co_return;
    }
    ToolCall request;
    request.server = own_name;
    request.tool = "program";
    request.origin = CallOrigin::program;
    request.session = state->options.session;
    request.id = detail::random_hex(8);
    request.execution = state->execution;
    MemoryReservation memory(state->memory);
    std::string problem;
    try {
        auto arguments = co_await tools::program_arguments(asked->question.get(), asked->copy.get(),
                                                           asked->input.get());
        request.arguments = std::move(arguments);
        if (!reserve(memory, 3 * detail::memory_size(request.arguments)))
            problem = "too many programs are asked about at once";
    } catch (const Error& error) {
        problem = error.detail();
    } catch (const std::exception& error) {
        problem = error.what();
    }
    const std::string call_name = request.server + "." + request.tool;
    std::optional<OpenSpan> span;
    if (state->options.spans)
        span.emplace(state->options.spans, span_of(*state, request, Span::Kind::call));
    AuditedCall audit(state->options.audit, request, state->secrets, state->options.watcher,
                      state->host.logger);
    std::optional<Decision> decision;
    if (problem.empty()) {
        auto work = judge_program(state, std::move(request), decision);
        auto end = unwanted(state, asked);
        const bool answered = co_await ends_first(std::move(work), std::move(end));
        if (!answered) decision.reset();
        if (!decision) {
            refuse("the execution ended before anybody answered");
            co_return;
        }
    } else {
        decision.emplace(Verdict::deny, problem);
        decision->by = "tool server";
    }
    try {
        audit.decided(*decision);
    } catch (const std::exception& error) {
        refuse(error.what());
        co_return;
    }
    const auto refusal = refusal_of(*decision, call_name);
    if (refusal) {
        if (span) span->end(audit.outcome());
        refuse(std::string(refusal->body.at("error").as_string()));
        co_return;
    }
    send_answer(*asked, "y");
    const bool told =
        co_await ends_first(hung_up(asked), sleep_until(deadline_after(std::chrono::seconds(10))));
    char said[1024] = "";
    const auto size =
        told ? ::recv(asked->answer.native_handle(), said, sizeof said, MSG_DONTWAIT) : 0;
    try {
        if (size > 0 && said[0] == 'S')
            audit.ended("ok");
        else
            audit.failed(size > 5 ? std::string(said + 5, static_cast<std::size_t>(size) - 5)
                                  : "nobody told whether it started");
    } catch (const std::exception& error) {
        state->host.logger(LogLevel::warning, error.what());
    }
    if (span) span->end(audit.outcome());
}

}  // namespace ipybox
