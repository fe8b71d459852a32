// What the client is asked, and its answers.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "answers.hpp"
#include "host.hpp"
#include "options.hpp"

namespace ipybox::app::host {

// The question is over, however it ended: the client hears of that.
struct QuestionEnd {
    std::weak_ptr<HostState> weak;
    std::string handle;
    bool told = false;
    Clock::time_point deadline = never;
    ~QuestionEnd() {
        const auto host = weak.lock();
        if (!host) return;
        const auto found = host->questions.find(handle);
        if (found == host->questions.end()) return;
        const auto question = found->second;
        host->questions.erase(found);
        question->pending.withdraw();
        if (!told || host->ending) return;
        if (question->outcome.empty())
            question->outcome = Clock::now() < deadline ? "withdrawn" : "expired";
        auto params = only("approval", handle);
        params.emplace("request", question->request);
        params.emplace("outcome", question->outcome);
        params.emplace("by", question->by);
        host->notify("approval/settled", std::move(params));
    }
};

namespace {

json::object answer_approval(HostState& host, Request& request) {
    auto& params = request.params;
    const auto handle = text_of(params, "approval");
    const auto found = host.questions.find(handle);
    if (found == host.questions.end()) {
        if (!HostState::was_given(handle, 'a', host.asked))
            throw BadParams("/approval", "is no approval that was requested");
        return only("accepted", false);
    }
    const bool yes = text_of(params, "verdict") == "allow";
    Decision decision(yes ? Verdict::allow : Verdict::deny, text_of(params, "reason"));
    decision.by = text_of(params, "by", "application");
    if (decision.by.empty()) decision.by = "application";
    if (params.contains("arguments")) {
        if (!yes) throw BadParams("/arguments", "belong to the verdict \"allow\" alone");
        decision.arguments = std::make_shared<const json::object>(take_object(params, "arguments"));
    }
    auto& question = *found->second;
    const auto by = decision.by;
    const bool accepted = question.pending.answer(Question::client, std::move(decision));
    if (accepted) {
        question.outcome = yes ? "allowed" : "denied";
        question.by = by;
        question.changed.notify();
    }
    return only("accepted", accepted);
}

json::object answer_input(HostState& host, Request& request) {
    const auto handle = text_of(request.params, "input");
    const auto found = host.inputs.find(handle);
    if (found == host.inputs.end()) {
        if (!HostState::was_given(handle, 'i', host.prompted))
            throw BadParams("/input", "is no input that was asked for");
        return only("accepted", false);
    }
    const InputRequest input = found->second;
    host.inputs.erase(found);
    if (const auto* text = detail::find_string(request.params, "text"))
        input.answer(std::string(*text));
    else
        input.refuse();
    return only("accepted", true);
}

awaitable<void> tell_when_settled(HostPtr host, std::string handle, InputRequest input) {
    co_await input.settled();
    host->inputs.erase(handle);
    if (!host->ending) host->notify("input/settled", only("input", handle));
}

}  // namespace

awaitable<Decision> ask_client(std::weak_ptr<HostState> weak, std::string session,
                               std::string tools, ToolCall call) {
    std::shared_ptr<Question> question;
    std::shared_ptr<Outbox> outbox;
    QuestionEnd end;
    {
        const auto host = weak.lock();
        if (!host || host->ending) co_return nobody_there();
        const auto found = host->sessions.find(session);
        if (found != host->sessions.end() && found->second->running && found->second->approve_all &&
            !call.execution.empty()) {
            Decision yes(Verdict::allow);
            yes.by = "approve: all";
            co_return yes;
        }
        outbox = host->outbox;
        question = std::make_shared<Question>(host->executor);
        end.weak = weak;
        end.deadline = call.deadline;
        end.handle = "a" + std::to_string(++host->asked);
        host->questions.emplace(end.handle, question);
    }
    // Many calls with large arguments must not fill the memory.
    co_await Outbox::room(outbox);
    {
        const auto host = weak.lock();
        if (!host || host->ending) co_return nobody_there();
        json::object params;
        params.emplace("approval", end.handle);
        params.emplace("session", handle_json(session));
        params.emplace("tools", handle_json(tools));
        if (const auto found = host->sessions.find(session);
            found != host->sessions.end() && found->second->running && !call.execution.empty())
            question->request = found->second->running->id;
        params.emplace("request", question->request);
        params.emplace("text", approval::call_text(call.server, call.tool, call.sent_arguments()));
        params.emplace("call", call_json(call));
        question->pending.show(Question::client);
        end.told = true;
        host->notify("approval/requested", std::move(params));
    }
    while (question->pending.open()) co_await question->changed.wait();
    co_return question->pending.take();
}

void ask_for_input(const HostPtr& host, const RequestPtr& request, InputRequest input) {
    const auto handle = "i" + std::to_string(++host->prompted);
    host->inputs.emplace(handle, input);
    json::object params;
    params.emplace("input", handle);
    params.emplace("request", request->id);
    params.emplace("prompt", input.prompt());
    params.emplace("text", input.to_string());
    params.emplace("password", input.is_password());
    host->notify("execution/input", std::move(params));
    asio::co_spawn(host->executor, tell_when_settled(host, handle, std::move(input)),
                   asio::detached);
}

Methods question_methods() {
    return {{"approval/answer", answer_approval}, {"input/answer", answer_input}};
}

}  // namespace ipybox::app::host
