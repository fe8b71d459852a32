#pragma once
#include <ipybox/mcp/server.hpp>

#include <signal.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <ipybox/compilation.hpp>

namespace ipybox {

// ---- the server's registry ----
IPYBOX_DECL McpServer::McpServer(asio::any_io_executor executor, McpServerOptions options)
    : engine_(std::make_shared<mcp::McpEngine>(std::move(executor), std::move(options))) {}

IPYBOX_DECL McpServer::~McpServer() {
    // On the executor, not here: Asio (1.81) lets a signal that is emitted elsewhere outlive what
    // it is meant for.
    engine_->stopping = true;
    asio::post(engine_->executor, [engine = engine_] { engine->stop(); });
}

IPYBOX_DECL void McpServer::stop() { engine_->stop(); }

IPYBOX_DECL void McpServer::add_tool(McpTool tool) {
    auto entry = std::make_shared<mcp::McpEngine::Tool>();
    if (tool.name.empty() || mcp::find_entry(engine_->tools, tool.name) != engine_->tools.end())
        throw Error(errc::bad_argument,
                    "there is already a tool \"" + tool.name + "\", or it has no name");
    if (!tool.call) throw Error(errc::bad_argument, "tool \"" + tool.name + "\" has no handler");
    if (tool.input_schema.empty()) tool.input_schema = {{"type", "object"}};
    if (detail::string_of(tool.input_schema, "type") != "object")
        throw Error(errc::bad_argument,
                    "the input schema of tool \"" + tool.name + "\" has not the type \"object\"");
    entry->header_parameters = detail::header_parameters(tool.input_schema);
    entry->listing = mcp::listing_of(tool);
    entry->listing.insert_or_assign("inputSchema", tool.input_schema);
    if (!tool.output_schema.empty())
        entry->listing.insert_or_assign("outputSchema", tool.output_schema);
    if (!tool.annotations.empty()) entry->listing.insert_or_assign("annotations", tool.annotations);
    entry->input_schema = std::move(tool.input_schema);
    entry->input = std::make_unique<detail::SchemaDocument>(entry->input_schema);
    if (!tool.output_schema.empty()) {
        entry->output_schema = std::move(tool.output_schema);
        entry->output = std::make_unique<detail::SchemaDocument>(entry->output_schema);
    }
    engine_->has_tasks |= tool.task != McpTaskUse::none;
    entry->item = std::move(tool);
    entry->serial = ++engine_->last_serial;
    engine_->tools.push_back(std::move(entry));
    engine_->has_tools = true;
    tools_changed();
}

IPYBOX_DECL void McpServer::add_resource(McpResource resource) {
    auto entry = std::make_shared<mcp::McpEngine::Resource>();
    const bool is_template = resource.uri.find('{') != std::string::npos;
    auto& entries = is_template ? engine_->templates : engine_->resources;
    if (resource.uri.empty() || mcp::find_entry(entries, resource.uri) != entries.end())
        throw Error(errc::bad_argument,
                    "there is already a resource \"" + resource.uri + "\", or it has no URI");
    if (!resource.read)
        throw Error(errc::bad_argument, "resource \"" + resource.uri + "\" has no handler");
    if (resource.name.empty()) resource.name = resource.uri;
    if (is_template) entry->pattern.emplace(resource.uri);
    entry->listing = mcp::listing_of(resource);
    entry->listing.insert_or_assign(is_template ? "uriTemplate" : "uri", resource.uri);
    if (!resource.mime_type.empty())
        entry->listing.insert_or_assign("mimeType", resource.mime_type);
    engine_->has_completions |= static_cast<bool>(resource.complete);
    entry->item = std::move(resource);
    entry->serial = ++engine_->last_serial;
    entries.push_back(std::move(entry));
    engine_->has_resources = true;
    resources_changed();
}

IPYBOX_DECL void McpServer::add_prompt(McpPrompt prompt) {
    auto entry = std::make_shared<mcp::McpEngine::Prompt>();
    if (prompt.name.empty() ||
        mcp::find_entry(engine_->prompts, prompt.name) != engine_->prompts.end())
        throw Error(errc::bad_argument,
                    "there is already a prompt \"" + prompt.name + "\", or it has no name");
    if (!prompt.get)
        throw Error(errc::bad_argument, "prompt \"" + prompt.name + "\" has no handler");
    entry->listing = mcp::listing_of(prompt);
    json::array arguments;
    for (const auto& argument : prompt.arguments) {
        json::object listed{{"name", argument.name}, {"required", argument.required}};
        if (!argument.description.empty()) listed.emplace("description", argument.description);
        arguments.push_back(std::move(listed));
    }
    if (!arguments.empty()) entry->listing.insert_or_assign("arguments", std::move(arguments));
    engine_->has_completions |= static_cast<bool>(prompt.complete);
    entry->item = std::move(prompt);
    entry->serial = ++engine_->last_serial;
    engine_->prompts.push_back(std::move(entry));
    engine_->has_prompts = true;
    prompts_changed();
}

IPYBOX_DECL bool McpServer::remove_tool(std::string_view name) {
    if (!mcp::remove_entry(engine_->tools, name)) return false;
    tools_changed();
    return true;
}

IPYBOX_DECL bool McpServer::remove_resource(std::string_view uri) {
    const bool found =
        mcp::remove_entry(engine_->resources, uri) || mcp::remove_entry(engine_->templates, uri);
    if (found) resources_changed();
    return found;
}

IPYBOX_DECL bool McpServer::remove_prompt(std::string_view name) {
    if (!mcp::remove_entry(engine_->prompts, name)) return false;
    prompts_changed();
    return true;
}

IPYBOX_DECL void McpServer::resource_updated(std::string_view uri) { engine_->updated(uri); }

IPYBOX_DECL void McpServer::tools_changed() { engine_->schedule_news(engine_->tell_tools); }

IPYBOX_DECL void McpServer::prompts_changed() { engine_->schedule_news(engine_->tell_prompts); }

IPYBOX_DECL void McpServer::resources_changed() { engine_->schedule_news(engine_->tell_resources); }

}  // namespace ipybox

namespace ipybox::mcp {

IPYBOX_DECL bool StdioOutlet::notify(json::object message) {
    if (bytes_ > limit_) return false;
    put(detail::write_json(message));
    return true;
}

IPYBOX_DECL std::string StdioOutlet::take() {
    bytes_ = 0;
    return std::exchange(lines_, {});
}

IPYBOX_DECL void StdioOutlet::put(std::string_view line) {
    if (broken) return;
    lines_ += line;
    lines_ += '\n';
    bytes_ = lines_.size();
    changed.notify();
}

IPYBOX_DECL void BatchOutlet::respond(json::object message, unsigned) {
    answers_.emplace_back(std::move(message));
    abandon();
}

IPYBOX_DECL awaitable<void> write_lines(std::shared_ptr<StdioOutlet> outlet,
                                        std::shared_ptr<asio::posix::stream_descriptor> output) {
    while (!outlet->broken) {
        if (outlet->empty()) {
            co_await outlet->changed.wait();
            continue;
        }
        outlet->writing = true;
        const std::string lines = outlet->take();
        auto [error, size] = co_await asio::async_write(*output, asio::buffer(lines), as_result);
        outlet->writing = false;
        if (error) outlet->broken = true;
        outlet->changed.notify();
    }
}

IPYBOX_DECL awaitable<void> read_lines(std::shared_ptr<McpEngine> engine, McpSessionPtr session,
                                       std::shared_ptr<StdioOutlet> outlet,
                                       std::shared_ptr<asio::posix::stream_descriptor> input) {
    const auto refuse = [outlet](const BadLine& line) {
        if (!line.problem.empty())
            outlet->respond(
                rpc_error(line.id, line.code, "this message " + std::string(line.problem)), 400);
    };
    const auto batch = [engine, session, outlet](json::array messages) {
        if (const auto why = engine->batch_problem(*session, messages); !why.empty())
            return outlet->respond(rpc_error(json::value(), rpc_invalid_request, why), 400);
        auto answers = std::make_shared<BatchOutlet>(outlet, McpEngine::answers_to(messages));
        engine->accept_batch(session, answers, std::move(messages));
    };
    MemoryBudget::process().ensure(3 * engine->options.max_message);
    MessageSplitter splitter(engine->options.max_message, refuse, batch);
    while (!engine->stopping && !outlet->broken) {
        // A client that sends and does not read is not read from either.
        if (outlet->crowded()) {
            co_await outlet->changed.wait();
            continue;
        }
        const auto room = splitter.prepare();
        auto [error, size] =
            co_await input->async_read_some(asio::buffer(room.data, room.size), as_result);
        if (error) co_return;
        splitter.commit(size);
        for (;;) {
            auto message = splitter.next();
            if (!message) {
                outlet->respond(rpc_error(json::value(), rpc_invalid_request,
                                          "a message does not end within " +
                                              std::to_string(splitter.most_skipped()) + " bytes"),
                                400);
                co_return;
            }
            if (!*message) break;
            engine->accept(session, outlet, std::move(**message));
        }
    }
}

IPYBOX_DECL awaitable<void> until_stopped(std::shared_ptr<McpEngine> engine,
                                          std::shared_ptr<StdioOutlet> outlet) {
    while (!engine->stopping && !outlet->broken) co_await outlet->changed.wait();
}

IPYBOX_DECL awaitable<void> serve_lines(std::shared_ptr<McpEngine> engine, int in, int out) {
    struct sigaction action{};
    ::sigaction(SIGPIPE, nullptr, &action);
    if (action.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
    const int in_copy = ::dup(in), out_copy = ::dup(out);
    if (in_copy < 0 || out_copy < 0) {
        if (in_copy >= 0) ::close(in_copy);
        if (out_copy >= 0) ::close(out_copy);
        throw Error(errc::io_error, "standard input or output is not open");
    }
    auto input = std::make_shared<asio::posix::stream_descriptor>(engine->executor, in_copy);
    auto output = std::make_shared<asio::posix::stream_descriptor>(engine->executor, out_copy);
    auto outlet = std::make_shared<StdioOutlet>(engine->executor, engine->options.max_queue);
    auto session = engine->open_session("stdio", {}, false);
    session->outlet = outlet;
    asio::co_spawn(engine->executor, write_lines(outlet, output), asio::detached);
    auto reading = read_lines(engine, session, outlet, input);
    auto stopping = until_stopped(engine, outlet);
    co_await ends_first(std::move(reading), std::move(stopping));
    engine->end(session);
    // What is already answered still reaches a client that reads.
    const auto deadline = Clock::now() + std::chrono::seconds(1);
    while (!outlet->broken && (outlet->writing || !outlet->empty()) && Clock::now() < deadline)
        co_await outlet->changed.wait(deadline);
    outlet->broken = true;
    outlet->changed.notify();
    boost::system::error_code ignored;
    output->cancel(ignored);
}

}  // namespace ipybox::mcp

namespace ipybox {

IPYBOX_DECL awaitable<void> McpServer::serve_stdio(int input, int output) {
    return mcp::serve_lines(engine_, input, output);
}

}  // namespace ipybox
