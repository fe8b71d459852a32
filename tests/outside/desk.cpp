// An application of somebody else: what it asks of ipybox, and a line for each answer.
//
// Usage: desk WORKSPACE SPANS
#include <fstream>
#include <iostream>
#include <ipybox/agent.hpp>
#include <ipybox/executor/blocking.hpp>
#include <ipybox/mcp/server.hpp>
#include <ipybox/version.hpp>

#include "otlp.hpp"

static_assert(IPYBOX_VERSION_MAJOR * 1000 + IPYBOX_VERSION_MINOR >= 1);

namespace {
using namespace ipybox;

void say(const std::string& what, const std::string& answer) {
    std::cout << what << ": " << answer.substr(answer.find_last_of('\n') + 1) << std::endl;
}
std::string refusal(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.what();
    }
    return "nothing was refused";
}

constexpr const char* call =
    "from mcptools.crm import find_customer\n"
    "find_customer.run(name='Ada')";

void act_by_chat(BlockingCodeExecutor& executor) {
    const json::object message{
        {"role", "assistant"},
        {"content", json::array{json::object{{"type", "tool_use"},
                                             {"id", "c1"},
                                             {"name", code_tool_name},
                                             {"input", {{"code", "print(6 * 7)"}}}}}}};
    std::vector<ChatAnswer> answers;
    for (const auto& one : code_calls(ChatApi::anthropic, message))
        answers.push_back(code_answer(one, executor.execute(one.code)));
    say("chat", json::serialize(chat_messages(ChatApi::anthropic, answers)));
}
}  // namespace

int main(int count, char** arguments) try {
    if (count != 3) return 2;
    std::ofstream spans(arguments[2]);
    CodeExecutorOptions options;
    options.workspace = arguments[1];
    options.allow_input = true;
    options.on_span = OtlpLines(spans, "desk");
    BlockingCodeExecutor executor(options);
    say("too early", refusal([&] { executor.execute("1"); }));
    executor.start();

    // A function of this program as a tool.
    McpServer crm(executor.get_executor());
    crm.add_tool({.name = "find_customer",
                  .description = "Finds a customer by name.",
                  .input_schema = {{"type", "object"},
                                   {"properties", {{"name", {{"type", "string"}}}}},
                                   {"required", {"name"}}},
                  .annotations = {{"readOnlyHint", true}},
                  .call = [](McpContext, json::object given) -> awaitable<McpToolResult> {
                      co_return "customer " + std::string(given.at("name").as_string());
                  }});
    executor.add_tools("crm", crm);

    say("nobody to ask", executor.execute(call).error);
    say("all approved", executor.execute_approved(call).text.value_or(""));
    const auto asked = executor.stream(call, [](ExecutionEvent& event) {
        const auto* request = std::get_if<ApprovalRequest>(&event);
        if (!request) return;
        say("asked", request->to_string());
        request->accept();
    });
    say("accepted", asked.ok_or_throw().text.value_or(""));
    executor.set_policy(json::parse(R"({"first_match": ["deny"]})"));
    say("denied", executor.execute_approved(call).error);
    executor.set_policy("ask");

    const auto apart = executor.execute(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\nvalue = 42\nvalue");
    say("stdout", json::serialize(json::value(apart.stdout_text())));
    say("stderr", json::serialize(json::value(apart.stderr_text())));
    say("value", apart.value_repr().value_or(""));
    const auto failed = executor.execute("1 / 0");
    say("error", failed.error_name + " " + failed.error_value);
    say("thrown", refusal([&] { failed.ok_or_throw(); }));
    for (const auto& variable : executor.variables())
        if (variable.name == "value") say("variable", variable.type + " " + variable.repr);

    ExecutionOptions how;
    how.displays = true;
    executor.stream(
        "from IPython.display import display\ndisplay({'text/plain': 'shown'}, raw=True)",
        [](ExecutionEvent& event) {
            if (const auto* shown = std::get_if<CodeExecutionDisplay>(&event))
                say("display", json::serialize(shown->data));
        },
        how);
    const auto answered =
        executor.stream("print('hello', input('Who?'))", [](ExecutionEvent& event) {
            if (const auto* question = std::get_if<InputRequest>(&event)) question->answer("Ada");
        });
    say("input", answered.text.value_or(""));
    say("no input", executor.execute("input()").error);

    for (const auto& server : executor.servers()) say("server", server.name + " " + server.type);
    for (const auto& tool : executor.list_tools("crm"))
        say("tool", tool.name + (tool.read_only.value_or(false) ? " reads" : " writes"));
    act_by_chat(executor);
    executor.unregister_server("crm");
    say("unregistered", executor.execute(call).error);
    executor.stop();
} catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
