// An agent: a model behind a chat-completions endpoint writes Python, ipybox runs it, and what that
// prints goes back to the model, until the model answers without code.
//
//   export AGENT_BASE_URL=http://localhost:11434/v1 AGENT_MODEL=qwen3
//   build/examples/agent_loop/agent_loop 'How many words are in my reports?' mcp.json
//
// AGENT_API_KEY is sent if it is set. IPYBOX_PLUGIN_PATH=build/plugins in a build tree.
//
// Tools that their server calls read-only are allowed; about the others a person is asked.
#include <termios.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/read_until.hpp>
#include <iostream>
#include <ipybox/ipybox.hpp>
#include <ipybox/net/http_client.hpp>

namespace {
using namespace ipybox;
using namespace std::chrono_literals;

constexpr int max_turns = 30;  // answers of the model for one task

// The hint is the server's word: configure servers that you trust.
constexpr const char* policy = R"({"first_match": [
    {"rules": [{"name": "reads", "when": {"annotations": {"readOnlyHint": true}}, "then": "allow"}]},
    "ask"]})";

// What a model wrote, without the escape sequences that could fake a question.
std::string shown(std::string_view text) { return detail::TerminalFilter()(text); }

std::string setting(const char* name, const char* otherwise = nullptr) {
    const char* value = std::getenv(name);
    if (value == nullptr) value = otherwise;
    if (value == nullptr)
        throw Error(errc::bad_argument, std::string("set ") + name + " in the environment");
    return value;
}

class Agent {
public:
    Agent(asio::any_io_executor executor, PluginRegistry& registry, const std::string& config)
        : http_(executor, {}),
          input_(executor, ::dup(STDIN_FILENO)),
          executor_(executor, registry, options(config)) {
        request_.method = "POST";
        request_.url = setting("AGENT_BASE_URL") + "/chat/completions";
        request_.headers = {{"Content-Type", "application/json"}};
        const auto key = setting("AGENT_API_KEY", "");
        if (!key.empty()) request_.headers.emplace_back("Authorization", "Bearer " + key);
    }

    awaitable<void> run(std::string task, std::map<std::string, json::object> servers) {
        co_await executor_.start();
        std::vector<std::string> names;
        for (const auto& [name, params] : servers) {
            co_await executor_.add_server(name, params);
            names.push_back(name);
        }
        //! [Agent]
        messages_ = {{{"role", "system"}, {"content", code_prompt(executor_, names)}},
                     {{"role", "user"}, {"content", task}}};
        ActOptions how;
        how.timeout = 5min;
        how.on_code = [](const std::string& code) { std::cerr << shown(code) << '\n'; };
        for (int turn = 0; turn < max_turns; ++turn) {
            json::object answer = co_await complete();
            messages_.push_back(answer);
            const json::array results = co_await act(executor_, ChatApi::openai, answer, how);
            for (const auto& result : results) messages_.push_back(result);
            if (!results.empty()) continue;
            //! [Agent]
            std::cout << shown(detail::string_of(answer, "content")) << std::endl;
            co_await executor_.stop();
            co_return;
        }
        throw Error(errc::output_limit,
                    "the model did not finish in " + std::to_string(max_turns) + " turns");
    }

private:
    CodeExecutorOptions options(const std::string& config) {
        CodeExecutorOptions options;  // bubblewrap, no network, the current directory as workspace
        // The next start runs what it names.
        if (!config.empty()) options.write_protected = {std::filesystem::canonical(config)};
        options.approval = json::parse(policy);
        options.approvers = {[this](ToolCall call) { return confirm(std::move(call)); }};
        return options;
    }

    // The model's next message.
    awaitable<json::object> complete() {
        HttpRequest request = request_;
        const json::value body = {{"model", setting("AGENT_MODEL")},
                                  {"messages", messages_},
                                  {"tools", json::array{code_tool(ChatApi::openai)}}};
        request.body = json::serialize(body);
        request.deadline = Clock::now() + 10min;
        const auto deadline = request.deadline;
        auto response = co_await http_.send(std::move(request));
        const std::string text = co_await response->read_all(16u << 20, deadline);
        if (response->status() != 200)
            throw Error(errc::bad_argument, response->url().printable() + " answers " +
                                                std::to_string(response->status()) + ": " +
                                                text.substr(0, 500));
        const json::value answer = parse_json(text, response->url().printable());
        co_return answer.at("choices").at(0).at("message").as_object();
    }

    // Only a "y" is a yes; nobody there means no.
    awaitable<Decision> confirm(ToolCall call) {
        std::cerr << "Allow " << approval::call_text(call.server, call.tool, call.sent_arguments())
                  << " ? [y/N] " << std::flush;
        ::tcflush(input_.native_handle(), TCIFLUSH);  // typed before the question: no answer to it
        if (::isatty(input_.native_handle()) == 1) typed_.clear();
        const auto buffer = asio::dynamic_buffer(typed_, 4096);
        auto [error, size] = co_await asio::async_read_until(input_, buffer, '\n', as_result);
        const bool yes = !error && typed_.starts_with("y\n");
        typed_.erase(0, size);
        if (yes) co_return Decision(Verdict::allow);
        co_return Decision(Verdict::deny, "the user said no");
    }

    HttpClient http_;
    HttpRequest request_;
    asio::posix::stream_descriptor input_;
    std::string typed_;
    json::array messages_;
    CodeExecutor executor_;
};
}  // namespace

int main(int count, char** arguments) try {
    if (count < 2) throw Error(errc::bad_argument, "usage: agent_loop TASK [MCP-CONFIG]");
    const std::string config = count > 2 ? arguments[2] : "";
    std::map<std::string, json::object> servers;
    if (!config.empty())
        servers = read_mcp_servers(parse_json(read_text_file(config), config), config);
    asio::io_context context(1);
    auto registry = PluginRegistry::standard();
    Agent agent(context.get_executor(), registry, config);
    std::exception_ptr failure;
    asio::co_spawn(context, agent.run(arguments[1], std::move(servers)),
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
