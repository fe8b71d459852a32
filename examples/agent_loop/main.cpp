// An agent: a model behind a chat-completions endpoint writes Python, ipybox runs it, and what that
// prints goes back to the model, until the model answers without code.
//
//   export AGENT_BASE_URL=http://localhost:11434/v1 AGENT_MODEL=qwen3   # AGENT_API_KEY if it needs
//   one export IPYBOX_PLUGIN_PATH=build/plugins build/examples/agent_loop/agent_loop 'How many
//   words are in my reports?' mcp.json
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

constexpr int max_turns = 30;                // answers of the model for one task
constexpr std::size_t max_feedback = 20000;  // characters of a cell's output that the model gets

constexpr const char* instructions =
    "You solve the user's task by writing Python. execute_ipython_cell runs a cell in a stateful "
    "IPython kernel and returns what it printed. First find the tools that you can call: "
    "'from ipybox_kernel import tools; tools.search(\"what the tool should do\")' lists some as "
    "server.tool(parameters), and 'tools.describe(\"server.tool\")' says how one is called. Then "
    "call several tools in one cell, as in "
    "'from mcptools.files import read_text_file; read_text_file.run(path=\"a.txt\").content', and "
    "print only what you need to know. A person may refuse a call. Answer without a cell when the "
    "task is done.";

constexpr const char* tools = R"([{"type": "function", "function": {
    "name": "execute_ipython_cell",
    "description": "Runs Python code in the IPython kernel.",
    "parameters": {"type": "object", "required": ["code"], "properties": {"code": {"type": "string"}}}}}])";

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
        for (const auto& [name, params] : servers)
            co_await executor_.generate_mcp_sources(name, params);
        messages_ = {{{"role", "system"}, {"content", instructions}},
                     {{"role", "user"}, {"content", task}}};
        for (int turn = 0; turn < max_turns; ++turn) {
            json::object answer = co_await complete();
            messages_.push_back(answer);
            const json::value calls = answer["tool_calls"];
            if (!calls.is_array() || calls.get_array().empty()) {
                if (const auto* text = answer["content"].if_string())
                    std::cout << shown(*text) << std::endl;
                co_await executor_.stop();
                co_return;
            }
            for (const auto& call : calls.get_array()) {
                std::string feedback = co_await act(call.at("function").as_object());
                messages_.push_back(
                    {{"role", "tool"}, {"tool_call_id", call.at("id")}, {"content", feedback}});
            }
        }
        throw Error(errc::output_limit,
                    "the model did not finish in " + std::to_string(max_turns) + " turns");
    }

private:
    static CodeExecutorOptions options(const std::string& config) {
        CodeExecutorOptions options;  // bubblewrap, no network, the current directory as workspace
        // The next start runs what it names.
        if (!config.empty()) options.write_protected = {std::filesystem::canonical(config)};
        options.approval = json::parse(policy);
        return options;
    }

    // The model's next message.
    awaitable<json::object> complete() {
        HttpRequest request = request_;
        const json::value body = {{"model", setting("AGENT_MODEL")},
                                  {"messages", messages_},
                                  {"tools", json::parse(tools)}};
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

    // Runs one code action. Whatever goes wrong is for the model to read.
    awaitable<std::string> act(json::object function) {
        boost::system::error_code error;
        const json::value arguments = json::parse(function.at("arguments").as_string(), error);
        const auto* object = arguments.if_object();
        const auto* code = object ? object->if_contains("code") : nullptr;
        if (function.at("name") != "execute_ipython_cell" || !code || !code->is_string())
            co_return "There is only execute_ipython_cell, with a string \"code\".";
        std::string source(code->get_string());
        std::cerr << shown(source) << '\n';
        auto execution = co_await executor_.stream(std::move(source), 5min);
        std::string feedback;
        bool lost = false;
        while (auto event = co_await execution.next()) {
            if (auto* question = std::get_if<ApprovalRequest>(&*event)) {
                const bool yes = co_await confirm("Allow " + question->to_string() + " ? [y/N] ");
                yes ? question->accept() : question->reject("the user said no");
            } else if (auto* result = std::get_if<CodeExecutionResult>(&*event)) {
                feedback = result->text.value_or("") + (result->ok() ? "" : "\n" + result->error);
                lost = result->status == CodeExecutionResult::Status::kernel_lost;
            }
        }
        if (feedback.size() > max_feedback) {
            std::size_t end = max_feedback;
            while ((feedback[end] & 0xC0) == 0x80) --end;  // between characters of UTF-8
            feedback = feedback.substr(0, end) + "\n[cut]";
        }
        if (lost) co_await executor_.reset();
        co_return feedback.empty() ? "(no output)" : feedback;
    }

    // Only a "y" is a yes; nobody there means no.
    awaitable<bool> confirm(std::string question) {
        std::cerr << question << std::flush;
        ::tcflush(input_.native_handle(), TCIFLUSH);  // typed before the question: no answer to it
        if (::isatty(input_.native_handle()) == 1) typed_.clear();
        const auto buffer = asio::dynamic_buffer(typed_, 4096);
        auto [error, size] = co_await asio::async_read_until(input_, buffer, '\n', as_result);
        const bool yes = !error && typed_.starts_with("y\n");
        typed_.erase(0, size);
        co_return yes;
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
