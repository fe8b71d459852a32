#pragma once
// What an agent needs between a chat model and a CodeExecutor: the tool by which the model acts,
// its instructions, its calls, and what it reads of their results.
//
// Example: agent_loop/main.cpp [Agent]
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <cstddef>
#include <ipybox/async.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/executor/code_executor.hpp>
#include <ipybox/executor/picture.hpp>
#include <ipybox/mcp/result_text.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox {

// How a chat API spells tools, calls and images: OpenAI's Chat Completions, as most local servers
// have it too, or Anthropic's Messages.
enum class ChatApi { openai, anthropic };

// What of a cell's end the model gets.
struct ChatLimits {
    std::size_t characters = 20'000;                 // of output and error, each
    std::size_t images = 4;                          // of one cell
    std::size_t image_bytes = std::size_t{3} << 20;  // of each
};

// A call that the model made.
struct ChatCall {
    std::string id;
    std::string code;
    std::string problem;  // why there is nothing to run, for the model to read
};

// What the model reads of a call.
struct ChatAnswer {
    std::string id;
    std::string text;
    std::vector<executor::Picture> images;
    bool is_error = false;
};

inline constexpr std::string_view code_tool_name = "execute_ipython_cell";

// The tool by which a model acts: an element of the request's "tools".
inline json::object code_tool(ChatApi api) {
    json::object schema{
        {"type", "object"},
        {"properties", {{"code", {{"type", "string"}, {"description", "Python, one cell."}}}}},
        {"required", json::array{"code"}}};
    constexpr std::string_view about =
        "Runs Python in an IPython kernel that keeps its state. Returns what the cell printed and "
        "the value of its last expression.";
    if (api == ChatApi::anthropic)
        return {{"name", code_tool_name}, {"description", about}, {"input_schema", schema}};
    return {
        {"type", "function"},
        {"function", {{"name", code_tool_name}, {"description", about}, {"parameters", schema}}}};
}

// For the model's system prompt: how it acts, and the tools of `servers`, which were added to the
// executor; lists beyond `most` bytes are left for the model to search.
inline std::string code_prompt(const CodeExecutor& executor,
                               const std::vector<std::string>& servers = {},
                               std::size_t most = 4000) {
    std::string text =
        "You solve the user's task by writing Python. " + std::string(code_tool_name) +
        " runs a cell in a stateful IPython kernel and returns what it printed. In a cell, 'from "
        "ipybox_kernel import tools; tools.search(\"what the tool should do\")' lists tools that "
        "you can call as server.tool(parameters), and 'tools.describe(\"server.tool\")' says how "
        "one is called. Then call several tools in one cell, as in 'from mcptools.files import "
        "read_text_file; read_text_file.run(path=\"a.txt\").content', and print only what you "
        "need to know. A person may refuse a call. Answer without a cell when the task is done.";
    std::string unlisted;
    for (const auto& server : servers) {
        auto list = executor.list_stubs(server);
        if (text.size() + list.size() <= most)
            text += "\n\n" + list;
        else
            unlisted += (unlisted.empty() ? "" : ", ") + server;
    }
    if (!unlisted.empty()) text += "\n\nSearch for the tools of: " + unlisted + '.';
    return text;
}

// The calls in a message of the model, in order; none when it has answered.
inline std::vector<ChatCall> code_calls(ChatApi api, const json::object& message) {
    std::vector<ChatCall> calls;
    const auto* list = message.if_contains(api == ChatApi::openai ? "tool_calls" : "content");
    if (!list || !list->is_array()) return calls;
    for (const auto& each : list->get_array()) {
        const auto* call = each.if_object();
        if (!call || (api == ChatApi::anthropic && detail::string_of(*call, "type") != "tool_use"))
            continue;
        const auto* named = api == ChatApi::openai ? detail::object_of(*call, "function") : call;
        ChatCall found{std::string(detail::string_of(*call, "id")), {}, {}};
        json::value arguments;
        if (named && api == ChatApi::openai) {
            boost::system::error_code error;
            arguments = json::parse(detail::string_of(*named, "arguments"), error);
        } else if (const auto* input = named ? named->if_contains("input") : nullptr) {
            arguments = *input;
        }
        const auto* object = arguments.if_object();
        const auto* code = object ? object->if_contains("code") : nullptr;
        if (!named || detail::string_of(*named, "name") != code_tool_name)
            found.problem = "There is only the tool " + std::string(code_tool_name) + '.';
        else if (!code || !code->is_string())
            found.problem = std::string(code_tool_name) + " takes {\"code\": a string}.";
        else
            found.code = code->get_string();
        calls.push_back(std::move(found));
    }
    return calls;
}

// Text for a model: its beginning, cut between two characters.
inline std::string chat_text(std::string text, std::size_t characters) {
    const auto end = mcp::text_fits(text, characters, std::string::npos);
    if (end == text.size()) return text;
    text.resize(end);
    return text + "\n[cut after " + std::to_string(characters) + " characters]";
}

// What the model reads of a cell that has run.
inline ChatAnswer code_answer(const ChatCall& call, const CodeExecutionResult& result,
                              const ChatLimits& limits = {}) {
    ChatAnswer answer{call.id, chat_text(result.text.value_or(""), limits.characters), {}, false};
    if (!result.ok()) {
        answer.is_error = true;
        answer.text +=
            (answer.text.empty() ? "" : "\n") + chat_text(result.error, limits.characters);
    }
    for (const auto& display : result.displays) {
        if (answer.images.size() == limits.images) break;
        auto picture = executor::picture_of(display);
        if (picture && picture->bytes.size() <= limits.image_bytes)
            answer.images.push_back(std::move(*picture));
    }
    if (const auto all = result.images.size(); all > answer.images.size())
        answer.text += "\n[" + std::to_string(all - answer.images.size()) + " of " +
                       std::to_string(all) + " images not shown; all are files in " +
                       result.images.front().parent_path().string() + ']';
    if (answer.text.empty()) answer.text = "(no output)";
    return answer;
}

// The messages that answer all calls of one message.
inline json::array chat_messages(ChatApi api, const std::vector<ChatAnswer>& answers) {
    json::array messages, blocks;
    for (const auto& answer : answers) {
        json::array images;
        for (const auto& image : answer.images) {
            const auto data = detail::encode_base64(image.bytes);
            if (api == ChatApi::openai)
                images.push_back(
                    {{"type", "image_url"},
                     {"image_url", {{"url", "data:" + image.type + ";base64," + data}}}});
            else
                images.push_back(
                    {{"type", "image"},
                     {"source", {{"type", "base64"}, {"media_type", image.type}, {"data", data}}}});
        }
        if (api == ChatApi::openai) {
            messages.push_back(
                {{"role", "tool"}, {"tool_call_id", answer.id}, {"content", answer.text}});
            for (auto& image : images) blocks.push_back(std::move(image));
        } else {
            images.insert(images.begin(), json::object{{"type", "text"}, {"text", answer.text}});
            blocks.push_back({{"type", "tool_result"},
                              {"tool_use_id", answer.id},
                              {"content", std::move(images)},
                              {"is_error", answer.is_error}});
        }
    }
    // Tools of Chat Completions answer with text alone: images follow as if the user sent them.
    if (api == ChatApi::openai && !blocks.empty())
        blocks.insert(blocks.begin(),
                      json::object{{"type", "text"}, {"text", "Images of the cells above:"}});
    if (!blocks.empty()) messages.push_back({{"role", "user"}, {"content", std::move(blocks)}});
    return messages;
}

// How act() runs cells.
struct ActOptions {
    Duration timeout = std::chrono::seconds(120);  // for each cell; zero: never
    ChatLimits limits;
    std::function<void(const std::string& code)> on_code;  // told of each before it runs
};

// Runs what a message of the model asks for, cell by cell; the messages that answer it, or none
// when the model has answered without a call. What goes wrong in a cell is for the model to read;
// a kernel that ended is replaced, and the model told. Throws what execute() and reset() throw;
// cancelling it cancels the cell.
inline awaitable<json::array> act(CodeExecutor& executor, ChatApi api, json::object message,
                                  ActOptions how) {
    std::vector<ChatAnswer> answers;
    auto calls = code_calls(api, message);
    for (auto& call : calls) {
        if (!call.problem.empty()) {
            answers.push_back({call.id, call.problem, {}, true});
            continue;
        }
        if (how.on_code) how.on_code(call.code);
        std::string code = call.code;
        const CodeExecutionResult result = co_await executor.execute(std::move(code), how.timeout);
        answers.push_back(code_answer(call, result, how.limits));
        if (executor.kernel_alive()) continue;
        co_await executor.reset();
        answers.back().text +=
            "\n[The next cell runs in a new kernel, without the variables of this one.]";
    }
    co_return chat_messages(api, answers);
}
// The same with the usual options.
inline awaitable<json::array> act(CodeExecutor& executor, ChatApi api, json::object message) {
    return act(executor, api, std::move(message), ActOptions());
}

}  // namespace ipybox
