#pragma once
#include <ipybox/executor/service.hpp>

#include <ipybox/compilation.hpp>
#include <ipybox/executor/impl/service_state.hpp>

namespace ipybox {

IPYBOX_DECL awaitable<Decision> McpService::ask_client(std::weak_ptr<Session> weak, ToolCall call,
                                                       bool alone, bool judging) {
    const auto session = weak.lock();
    if (!session) co_return Decision{};
    const auto& place = judging ? session->judging : session->asking;
    if (!place) co_return Decision{};
    const McpContext context = *place;
    const bool known = granted(*session, call);
    if (known) co_return said(Verdict::allow, "for this session");
    if (!context.supports("elicitation.form")) {
        if (!alone) co_return Decision{};
        co_return said(Verdict::deny, "cannot be asked",
                       "approval is needed, and this client cannot ask its user (it has no "
                       "elicitation); a policy "
                       "could allow the call");
    }
    co_return co_await put(session, context, std::move(call));
}

IPYBOX_DECL bool McpService::granted(const Session& session, const ToolCall& call) {
    return call.origin == CallOrigin::mcp && session.granted.find(call).has_value();
}

IPYBOX_DECL Decision McpService::said(Verdict verdict, const std::string& by, std::string reason) {
    Decision decision(verdict, std::move(reason));
    decision.by = "client: " + by;
    return decision;
}

IPYBOX_DECL std::string McpService::client_question(CallOrigin origin, std::string_view text) {
    std::string fence = "```";
    while (text.find(fence) != text.npos) fence += '`';
    std::string_view head = "Code wants to call a tool:";
    if (origin == CallOrigin::shell || origin == CallOrigin::shell_magic)
        head = "Code wants to run a shell command:";
    if (origin == CallOrigin::program) head = "Code wants to start a program:";
    if (origin == CallOrigin::registration) head = "An MCP server is to be registered:";
    if (origin == CallOrigin::package) head = "A package is to be installed:";
    return std::string(head) + "\n\n" + fence + "\n" + std::string(text) + fence;
}

IPYBOX_DECL awaitable<Decision> McpService::put(SessionPtr session, McpContext context,
                                                ToolCall call) {
    Line::Place place(session->questions);
    co_await place.turn();
    const bool lasting = call.origin == CallOrigin::mcp && session->granted.may_remember(call);
    const bool known = granted(*session, call);
    if (known) co_return said(Verdict::allow, "for this session");
    const Question question(call);
    const std::string changes = session->granted.changes(call);
    std::string message = client_question(
        call.origin, question.text() + (changes.empty() ? "" : "  asked again: " + changes + '\n'));
    json::array choices{"deny", "allow once"};
    if (lasting) choices.emplace_back("allow this tool for the session");
    json::object choice{{"type", "string"}, {"title", "Decision"}, {"enum", std::move(choices)}};
    json::object reason{{"type", "string"},
                        {"title", "Reason"},
                        {"description", "for a denial: what the code is told"}};
    json::object properties, schema{{"type", "object"}};
    properties.emplace("decision", std::move(choice));
    properties.emplace("reason", std::move(reason));
    schema.emplace("properties", std::move(properties));
    schema.emplace("required", json::array{"decision"});
    const auto given = co_await context.elicit(std::move(message), std::move(schema));
    const auto action = detail::string_of(given, "action");
    if (action == "cancel")
        co_return said(Verdict::deny, "cancel", "the user dismissed the question");
    if (action != "accept") co_return said(Verdict::deny, "decline", "the user declined");
    const auto* content = detail::object_of(given, "content");
    const auto decision = content ? detail::string_of(*content, "decision") : std::string_view();
    if (decision == "allow once") co_return said(Verdict::allow, "once");
    if (lasting && decision == "allow this tool for the session") {
        session->granted.grant(call, rule_allowing(call), GrantLifetime());
        co_return said(Verdict::allow, "for this session");
    }
    std::string why(content ? detail::string_of(*content, "reason") : std::string_view());
    if (why.empty()) why = "the user denied it";
    co_return said(Verdict::deny, "deny", std::move(why));
}

IPYBOX_DECL awaitable<void> McpService::judge(ImplPtr state, SessionPtr session, McpContext context,
                                              ToolCall call) {
    Line::Place place(session->judgements);
    co_await place.turn();
    const Asking asking(session->judging, context);
    call.session = session->name;
    const Secrets nothing;
    call.id = detail::random_hex(8);
    AuditedCall audited(state->options.executor.audit, call, nothing,
                        state->options.executor.watcher, state->options.executor.logger);
    auto& policy =
        call.origin == CallOrigin::package ? *session->installation : *session->registration;
    const std::string what =
        call.origin == CallOrigin::package ? "install_package" : "register_mcp_server";
    const auto decision =
        co_await approve(policy, std::move(call), state->options.executor.approval_timeout);
    audited.decided(decision);
    if (decision.verdict != Verdict::allow)
        throw Error(errc::denied,
                    what + " was denied" + (decision.reason.empty() ? "" : ": " + decision.reason));
    audited.ended("ok");
}

}  // namespace ipybox
