// An agent: a model behind a chat-completions endpoint writes Python, ipybox runs it, and what that
// prints goes back to the model, until the model answers without code.
//
//   export AGENT_BASE_URL=http://localhost:11434/v1 AGENT_MODEL=qwen3
//   build/examples/agent_loop/agent_loop 'How many words are in my reports?' mcp.json
//
// AGENT_API_KEY is sent if it is set. IPYBOX_PLUGIN_PATH=build/plugins in a build tree.
//
// Tools that their server calls read-only are allowed; about the others a person is asked.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <iostream>
#include <ipybox/approval/console.hpp>
#include <ipybox/ipybox.hpp>
#include <ipybox/net/http_client.hpp>

namespace {
using namespace ipybox;
using namespace std::chrono_literals;

// The hint is the server's word: configure servers that you trust.
constexpr const char* policy = R"({"first_match": [
    {"rules": [{"name": "reads", "when": {"annotations": {"readOnlyHint": true}}, "then": "allow"}]},
    "ask"]})";

// What a model wrote, without the escape sequences that could fake a question.
std::string shown(std::string_view text) { return detail::TerminalFilter()(text); }

std::string setting(const char* name) {
    if (const char* value = std::getenv(name)) return value;
    throw Error(errc::bad_argument, std::string("set ") + name + " in the environment");
}

// The model's next message.
awaitable<json::object> complete(HttpClient& http, json::array messages) {
    HttpRequest request;
    request.method = "POST";
    request.url = setting("AGENT_BASE_URL") + "/chat/completions";
    request.headers = {{"Content-Type", "application/json"}};
    if (const char* key = std::getenv("AGENT_API_KEY"))
        request.headers.emplace_back("Authorization", std::string("Bearer ") + key);
    const json::value body = {{"model", setting("AGENT_MODEL")},
                              {"messages", std::move(messages)},
                              {"tools", json::array{code_tool(ChatApi::openai)}}};
    request.body = json::serialize(body);
    const auto deadline = request.deadline = Clock::now() + 10min;
    auto response = co_await http.send(std::move(request));
    const std::string text = co_await response->read_all(16u << 20, deadline);
    const std::string place = response->url().printable();
    if (response->status() != 200)
        throw Error(errc::bad_argument, place + " answers " + std::to_string(response->status()) +
                                            ": " + text.substr(0, 500));
    const json::value answer = parse_json(text, place);
    co_return answer.at("choices").at(0).at("message").as_object();
}

awaitable<void> work(asio::any_io_executor io, PluginRegistry& registry, std::string task,
                     std::string config) {
    Console console(io);
    CodeExecutorOptions options;  // bubblewrap, no network, the current directory as workspace
    // The next start runs what it names.
    if (!config.empty()) options.write_protected = {std::filesystem::canonical(config)};
    options.approval = json::parse(policy);
    options.approvers = {[&console](ToolCall call) { return console.ask(std::move(call)); }};
    CodeExecutor executor(io, registry, options);
    co_await executor.start();
    std::vector<std::string> names;
    std::map<std::string, json::object> servers;
    if (!config.empty())
        servers = read_mcp_servers(parse_json(read_text_file(config), config), config);
    for (const auto& [name, params] : servers) {
        co_await executor.add_server(name, params);
        names.push_back(name);
    }
    ActOptions how;
    how.timeout = 5min;
    how.on_code = [](const std::string& code) { std::cerr << shown(code) << '\n'; };
    HttpClient http(io, {});
    //! [Agent]
    json::array messages{{{"role", "system"}, {"content", code_prompt(executor, names)}},
                         {{"role", "user"}, {"content", task}}};
    for (int turn = 0; turn < 30; ++turn) {
        json::object answer = co_await complete(http, messages);
        messages.push_back(answer);
        const json::array results = co_await act(executor, ChatApi::openai, answer, how);
        for (const auto& result : results) messages.push_back(result);
        if (!results.empty()) continue;
        //! [Agent]
        std::cout << shown(detail::string_of(answer, "content")) << std::endl;
        co_await executor.stop();
        co_return;
    }
    throw Error(errc::output_limit, "the model did not finish in 30 turns");
}
}  // namespace

int main(int count, char** arguments) try {
    if (count < 2) throw Error(errc::bad_argument, "usage: agent_loop TASK [MCP-CONFIG]");
    asio::io_context context(1);
    auto registry = PluginRegistry::standard();
    std::exception_ptr failure;
    asio::co_spawn(
        context,
        work(context.get_executor(), registry, arguments[1], count > 2 ? arguments[2] : ""),
        [&](std::exception_ptr error) {
            failure = error;
            context.stop();
        });
    context.run();
    if (failure) std::rethrow_exception(failure);
} catch (const std::exception& error) {
    std::cerr << shown(error.what()) << '\n';
    return 1;
}
