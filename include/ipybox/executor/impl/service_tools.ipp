#pragma once
#include <ipybox/executor/service.hpp>

#include <ipybox/compilation.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/executor/impl/service_state.hpp>
#include <ipybox/executor/picture.hpp>
#include <ipybox/mcp/result_text.hpp>

namespace ipybox {

IPYBOX_DECL std::size_t McpService::room_for(const Impl& state, const McpContext& context) {
    return std::min(state.options.max_result, context.max_result());
}

IPYBOX_DECL McpToolResult McpService::failed(std::string_view tool, const std::string& why) {
    McpToolResult result("Error executing tool " + std::string(tool) + ": " + why);
    result.is_error = true;
    return result;
}

IPYBOX_DECL std::string McpService::fitting(std::string text, std::size_t characters,
                                            std::size_t& bytes) {
    const std::size_t room = bytes > 1000 ? bytes - 1000 : 0;
    const auto by_characters = mcp::text_fits(text, characters, std::string::npos);
    const auto end =
        mcp::text_fits(std::string_view(text).substr(0, by_characters), std::string::npos, room);
    std::string mark;
    if (end < by_characters) {
        mark = "\n\n[Output truncated: exceeded " + std::to_string(room) + " byte limit]";
    } else if (end < text.size()) {
        mark =
            "\n\n[Output truncated: exceeded " + std::to_string(characters) + " character limit]";
    }
    text.resize(end);
    text += mark;
    for (const char c : text)
        bytes -= std::min(bytes, mcp::json_cost(static_cast<unsigned char>(c)));
    return text;
}

IPYBOX_DECL awaitable<McpToolResult> McpService::execute_cell(ImplPtr state, McpContext context,
                                                              json::object arguments) {
    const double seconds = number_argument(arguments, "timeout", 120);
    const double characters = number_argument(arguments, "max_output_chars", 5000);
    const auto* wanted = arguments.if_contains("check");
    const bool check = wanted && wanted->is_bool() && wanted->get_bool();
    const Use use(state->session_of(context, arguments));
    const auto& session = use.session;
    Line::Place place(session->cells);
    co_await place.turn();
    co_await Impl::ready(state, session);
    const std::string lost = session->lost;
    CodeExecutionResult result;
    // More of the output than the answer can hold would be cut off below.
    mcp::StrippedText printed(room_for(*state, context));
    {
        const Asking asking(session->asking, context);
        auto execution =
            co_await session->executor->stream(std::string(detail::string_of(arguments, "code")),
                                               duration(seconds), true, ResultText::none, check);
        executor::CellReport report(state->io, context, state->options.keep_alive);
        session->report = &report;
        struct Reported {
            Session& of;
            ~Reported() { of.report = nullptr; }
        } const reported{*session};
        for (;;) {
            auto event = co_await execution.next();
            if (!event) break;
            if (const auto* chunk = std::get_if<CodeExecutionChunk>(&*event)) {
                report.add(chunk->text);
                printed.add(chunk->text);
            } else if (const auto* request = std::get_if<ApprovalRequest>(&*event)) {
                request->reject("nobody is there to approve this call");
            } else if (const auto* question = std::get_if<InputRequest>(&*event)) {
                question->refuse();
            } else {
                result = std::get<CodeExecutionResult>(std::move(*event));
            }
        }
        report.flush();
    }
    session->lost.clear();
    if (auto text = printed.take(); !text.empty()) result.text = std::move(text);
    // After a report there is less room than before.
    auto answer = cell_result(*state, result, room_for(*state, context),
                              static_cast<std::size_t>(std::min(characters, 1e12)), lost,
                              !session->executor->kernel_alive());
    state->list_images(session->executor->workspace(), result.images);
    co_return answer;
}

IPYBOX_DECL double McpService::number_argument(const json::object& arguments, std::string_view name,
                                               double otherwise) {
    const auto* value = arguments.if_contains(name);
    if (!value) return otherwise;
    const double number = value->to_number<double>();
    if (number < 0) throw Error(errc::bad_argument, std::string(name) + " must not be negative");
    return number;
}

IPYBOX_DECL Duration McpService::duration(double seconds) {
    return std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(std::min(seconds, 1e9)));
}

IPYBOX_DECL McpToolResult McpService::cell_result(const Impl& state,
                                                  const CodeExecutionResult& result,
                                                  std::size_t room, std::size_t characters,
                                                  const std::string& lost, bool kernel_lost) {
    constexpr std::string_view tool = "execute_ipython_cell";
    std::size_t bytes = room;
    std::string output = result.text.value_or("");
    if (!result.images.empty()) {
        output += "\n\nGenerated images:\n\n";
        for (const auto& image : result.images)
            output += "- [" + image.stem().string() + "](" + image.string() + ")\n";
    }
    McpToolResult answer;
    if (!lost.empty())
        answer.content.push_back(McpContent::text(
            "[The kernel of this session had ended " + lost +
            ": this cell ran in a new one, without the variables, imports and connections to "
            "MCP servers of before.]"));
    if (result.ok()) {
        answer.content.push_back(McpContent::text(fitting(output, characters, bytes)));
    } else {
        std::string error =
            "Error executing tool " + std::string(tool) + ": " +
            (result.status == CodeExecutionResult::Status::error ? headed(result.error)
                                                                 : result.error);
        if (kernel_lost)
            error +=
                "\nThe next cell runs in a new kernel, without the variables and imports "
                "of this one.";
        error = fitting(std::move(error), std::string::npos, bytes);
        if (!output.empty())
            error += "\n\nOutput until then:\n\n" + fitting(output, characters, bytes);
        answer.content.push_back(McpContent::text(error));
        answer.is_error = true;
    }
    // What whoever looks after the workspace should know of.
    std::string told;
    for (const auto& violation : result.violations)
        if (violation.layer == "files") told += "\n- " + violation.what;
    if (!told.empty())
        answer.content.push_back(
            McpContent::text(fitting("[Files that programs of the host run or obey; look at them "
                                     "before you use the workspace outside:" +
                                         told + "]",
                                     std::string::npos, bytes)));
    json::array pictures;
    for (const auto& display : result.displays) add_image(pictures, display, bytes);
    for (auto& picture : pictures) answer.content.push_back(std::move(picture));
    if (state.options.structured) {
        static constexpr std::string_view names[] = {
            "ok", "error", "timed_out", "cancelled", "kernel_lost", "output_limit", "refused"};
        json::object whole{{"status", names[static_cast<int>(result.status)]}};
        whole["text"] = fitting(result.text.value_or(""), characters, bytes);
        json::array files;
        for (const auto& image : result.images) files.emplace_back(image.string());
        whole["images"] = std::move(files);
        if (!result.ok()) whole["error"] = fitting(result.error, std::string::npos, bytes);
        answer.structured = std::move(whole);
    }
    return answer;
}

IPYBOX_DECL std::string McpService::headed(const std::string& traceback) {
    const std::string text = executor::strip(traceback);
    auto end = text.starts_with("---") ? text.rfind("\n\n") : std::string::npos;
    if (end == std::string::npos) end = text.rfind('\n');
    if (end == std::string::npos) return traceback;
    return executor::strip(std::string_view(text).substr(end)) + "\n" + traceback;
}

IPYBOX_DECL void McpService::add_image(json::array& blocks, const json::object& display,
                                       std::size_t& bytes) {
    const auto picture = executor::picture_of(display);
    if (!picture) return;
    const std::size_t size = picture->bytes.size() / 3 * 4 + 200;
    if (size > bytes) {
        blocks.push_back(
            McpContent::text("[Image omitted: " + std::to_string(picture->bytes.size()) +
                             " bytes exceed what one result may hold; its file is listed above]"));
    } else {
        bytes -= size;
        blocks.push_back(McpContent::image(picture->bytes, picture->type));
    }
}

IPYBOX_DECL awaitable<McpToolResult> McpService::register_server(ImplPtr state, McpContext context,
                                                                 json::object arguments) {
    const std::string name(detail::string_of(arguments, "server_name"));
    check_server_name(name);
    const auto params = check_server_params(arguments.at("server_params"), "server_params");
    const Use use(state->session_of(context, arguments));
    ToolCall call = registration_call(name, params);
    co_await judge(state, use.session, context, std::move(call));
    const auto tools = co_await use.session->executor->add_server(name, params);
    use.session->registered.insert(name);
    use.session->broken.erase(name);
    state->remember(name, params);
    McpToolResult result;
    for (const auto& tool : tools) result.content.push_back(McpContent::text(tool));
    if (state->options.structured) {
        json::array names;
        for (const auto& tool : tools) names.emplace_back(tool);
        result.structured = json::object{{"result", std::move(names)}};
    }
    co_return result;
}

IPYBOX_DECL ToolCall McpService::registration_call(const std::string& name,
                                                   const json::object& params) {
    ToolCall call;
    call.server = name;
    call.tool = "register";
    call.arguments = shown_params(params);
    call.origin = CallOrigin::registration;
    return call;
}

IPYBOX_DECL json::object McpService::shown_params(const json::object& params) {
    json::object shown;
    for (const auto& [key, value] : params)
        if (key != "env" && key != "headers" && key != "auth") shown[key] = value;
    for (const char* key : {"env", "headers"}) {
        const auto* values = params.if_contains(key);
        if (!values) continue;
        json::array names;
        for (const auto& entry : values->get_object()) names.emplace_back(entry.key());
        shown[key] = std::move(names);
    }
    std::set<std::string> variables;
    find_variables(json::value(params), variables);
    json::array names;
    for (const auto& name : variables) names.emplace_back(name);
    if (!names.empty()) shown["variables"] = std::move(names);
    return shown;
}

IPYBOX_DECL void McpService::find_variables(const json::value& value,
                                            std::set<std::string>& names) {
    if (const auto* text = value.if_string()) {
        std::string_view rest = *text;
        for (std::size_t at; (at = rest.find("${")) != rest.npos;) {
            rest.remove_prefix(at + 2);
            names.emplace(rest.substr(0, std::min(rest.find(":-"), rest.find('}'))));
        }
    } else if (const auto* list = value.if_array()) {
        for (const auto& item : *list) find_variables(item, names);
    } else if (const auto* object = value.if_object()) {
        for (const auto& entry : *object) find_variables(entry.value(), names);
    }
}

IPYBOX_DECL awaitable<McpToolResult> McpService::install(ImplPtr state, McpContext context,
                                                         json::object arguments) {
    const std::string package(detail::string_of(arguments, "package_name"));
    const Use use(state->session_of(context, arguments));
    ToolCall call;
    call.server = "ipybox";
    call.tool = "install_package";
    call.arguments["package_name"] = package;
    call.origin = CallOrigin::package;
    co_await judge(state, use.session, context, std::move(call));
    std::string said;
    try {
        said = co_await use.session->executor->install_package(package);
    } catch (const Error& error) {
        // What pip says is the result, whether it could or not.
        if (error.code() != errc::code_failed) throw;
        said = error.detail();
        said.erase(0, said.find('\n') + 1);
    }
    std::size_t bytes = room_for(*state, context);
    co_return McpToolResult(fitting(std::move(said), 100'000, bytes));
}

IPYBOX_DECL awaitable<McpToolResult> McpService::reset(ImplPtr state, McpContext context,
                                                       json::object arguments) {
    const Use use(state->session_of(context, arguments));
    const auto& session = use.session;
    Line::Place place(session->cells);
    co_await place.turn();
    while (session->preparing > 0) co_await session->changed.wait();
    session->running = false;
    co_await Impl::ready(state, session);
    session->lost.clear();
    co_return McpToolResult(json::array());
}

IPYBOX_DECL awaitable<McpToolResult> McpService::interrupt(ImplPtr state, McpContext context,
                                                           json::object arguments) {
    const auto session = state->session_of(context, arguments);
    const bool running = session->asking.has_value();
    session->executor->cancel();
    co_return McpToolResult(
        running ? "The running cell was interrupted; its call returns what it printed."
                : "No cell is running.");
}

IPYBOX_DECL bool McpService::callable(const Session& session, const ImportableTool& tool) {
    constexpr std::string_view generated = "mcptools.";
    return !tool.package.starts_with(generated) ||
           session.registered.contains(tool.package.substr(generated.size()));
}

IPYBOX_DECL std::string McpService::source_of(const Session& session, const std::string& server,
                                              const std::string& tool) {
    check_server_name(server);
    if (!detail::is_python_identifier(tool))
        throw Error(errc::bad_argument, "tool_name must be a module's name");
    const auto root = detail::open_real_directory(session.executor->workspace());
    const auto path = std::filesystem::path("mcptools") / server / (tool + ".py");
    try {
        return detail::read_beneath(root.get(), path, 0, std::size_t{1} << 20).bytes;
    } catch (const Error& error) {
        throw Error(errc::bad_argument, error.detail() + "; list_tools() says what there is");
    }
}

IPYBOX_DECL awaitable<McpToolResult> McpService::list_tools(ImplPtr state, McpContext context,
                                                            json::object arguments) {
    const Use use(state->session_of(context, arguments));
    const auto& session = *use.session;
    while (session.preparing > 0) co_await use.session->changed.wait();
    const std::string server(detail::string_of(arguments, "server_name"));
    const std::string tool(detail::string_of(arguments, "tool_name"));
    std::size_t bytes = room_for(*state, context);
    if (!tool.empty())
        co_return McpToolResult(fitting(source_of(session, server, tool), 100'000, bytes));
    std::string text;
    if (server.empty()) {
        struct Package {
            std::size_t tools = 0;
            bool callable = true;
        };
        std::map<std::string, Package> packages;
        for (const auto& one : importable_tools(session.executor->workspace())) {
            const auto category = one.package.find('.', one.package.find('.') + 1);
            auto& package = packages[one.package.substr(0, category)];
            ++package.tools;
            package.callable = callable(session, one);
        }
        for (const auto& [name, package] : packages)
            text += name + ": " + std::to_string(package.tools) +
                    (package.tools == 1 ? " tool" : " tools") +
                    (package.callable ? "\n" : ", its server is not registered\n");
    } else {
        try {
            text = session.executor->list_stubs(server);
        } catch (const Error& error) {
            text = error.detail() + " register_mcp_server adds those of an MCP server.\n";
        }
    }
    for (const auto& [name, why] : session.broken)
        text += "MCP server " + name + " could not be started: " + why + "\n";
    if (text.empty())
        text = "There are no tools yet; register_mcp_server adds those of an MCP server.\n";
    co_return McpToolResult(fitting(std::move(text), 100'000, bytes));
}

IPYBOX_DECL awaitable<McpToolResult> McpService::search(ImplPtr state, McpContext context,
                                                        json::object arguments) {
    const Use use(state->session_of(context, arguments));
    while (use.session->preparing > 0) co_await use.session->changed.wait();
    const auto limit =
        static_cast<std::size_t>(std::min(number_argument(arguments, "limit", 5), 1000.0));
    std::size_t bytes = room_for(*state, context);
    co_return McpToolResult(fitting(
        use.session->executor->search_tools(detail::string_of(arguments, "query"), limit, true),
        100'000, bytes));
}

IPYBOX_DECL awaitable<McpToolResult> McpService::describe(ImplPtr state, McpContext context,
                                                          json::object arguments) {
    const Use use(state->session_of(context, arguments));
    while (use.session->preparing > 0) co_await use.session->changed.wait();
    std::size_t bytes = room_for(*state, context);
    co_return McpToolResult(
        fitting(use.session->executor->describe_tool(detail::string_of(arguments, "name")), 100'000,
                bytes));
}

IPYBOX_DECL awaitable<void> McpService::files_ready(ImplPtr state, SessionPtr session) {
    if (!session->executor->shares_files()) co_await Impl::ready(state, session);
}

IPYBOX_DECL awaitable<McpToolResult> McpService::upload(ImplPtr state, McpContext context,
                                                        json::object arguments) {
    const Use use(state->session_of(context, arguments));
    std::string path(detail::string_of(arguments, "path"));
    std::string bytes(detail::string_of(arguments, "content"));
    if (detail::string_of(arguments, "encoding") == "base64") {
        auto decoded = detail::decode_base64(bytes);
        if (!decoded) throw Error(errc::bad_argument, "content is not valid base64");
        bytes = std::move(*decoded);
    }
    const auto* overwrite = arguments.if_contains("overwrite");
    const bool replace = !overwrite || overwrite->as_bool();
    std::string done = "Wrote " + std::to_string(bytes.size()) + " bytes to " + path;
    co_await files_ready(state, use.session);
    co_await use.session->executor->upload(std::move(path), std::move(bytes), replace);
    co_return McpToolResult(std::move(done));
}

IPYBOX_DECL awaitable<McpToolResult> McpService::download(ImplPtr state, McpContext context,
                                                          json::object arguments) {
    const Use use(state->session_of(context, arguments, true));
    const std::string path(detail::string_of(arguments, "path"));
    const auto offset =
        static_cast<std::uint64_t>(std::min(number_argument(arguments, "offset", 0), 1e18));
    // Base64 makes four bytes of three; text may grow more, and is cut then.
    const auto room = room_for(*state, context);
    const double most = static_cast<double>(room / 2);
    const auto limit =
        static_cast<std::size_t>(std::min(number_argument(arguments, "max_bytes", most), most));
    co_await files_ready(state, use.session);
    const FilePart part = co_await use.session->executor->download(path, offset, limit);
    const bool whole = offset == 0 && part.bytes.size() == part.size;
    const bool last = offset + part.bytes.size() >= part.size;
    McpToolResult result;
    std::size_t size = part.bytes.size();
    const auto type = mcp::image_type(part.bytes);
    const auto text = last ? std::string_view(part.bytes) : detail::whole_characters(part.bytes);
    if (whole && !type.empty()) {
        result.content.push_back(McpContent::image(part.bytes, type));
    } else if (mcp::is_text(text)) {
        size = mcp::text_fits(text, std::string::npos, room - std::min<std::size_t>(room, 2000));
        result.content.push_back(McpContent::text(text.substr(0, size)));
    } else {
        result.content.push_back(McpContent::embedded(McpContent::blob_of(
            "ipybox://workspace/" + path, part.bytes, "application/octet-stream")));
    }
    const auto end = offset + size;
    if (end < part.size)
        result.content.push_back(
            McpContent::text("[File truncated: bytes " + std::to_string(offset) + " to " +
                             std::to_string(end) + " of " + std::to_string(part.size) +
                             "; call again with offset " + std::to_string(end) + " for the rest]"));
    co_return result;
}

IPYBOX_DECL awaitable<json::array> McpService::read_resource(std::weak_ptr<Impl> weak,
                                                             McpContext context, std::string uri,
                                                             json::object variables) {
    const auto state = weak.lock();
    if (!state) throw Error(errc::cancelled, "the server is stopping");
    const Use use(state->session_of(context, variables, true));
    const std::string path(detail::string_of(variables, "path"));
    co_await files_ready(state, use.session);
    const FilePart part =
        co_await use.session->executor->download(path, 0, room_for(*state, context) / 2);
    co_return contents_of(uri, path, part);
}

IPYBOX_DECL awaitable<json::array> McpService::read_image(std::weak_ptr<Impl> weak,
                                                          McpContext context, std::string uri,
                                                          std::string path) {
    const auto state = weak.lock();
    if (!state) throw Error(errc::cancelled, "the server is stopping");
    const Use use(state->session_of(context, json::object(), true));
    const auto part = use.session->executor->read_here(path, 0, room_for(*state, context) / 2);
    co_return contents_of(uri, path, part);
}

IPYBOX_DECL json::array McpService::contents_of(const std::string& uri, const std::string& path,
                                                const FilePart& part) {
    if (part.bytes.size() < part.size)
        throw Error(
            errc::bad_argument,
            path + ": " + std::to_string(part.size) +
                " bytes are more than one answer may hold; download_file reads it in parts");
    json::array contents;
    if (const auto type = mcp::image_type(part.bytes); !type.empty()) {
        contents.push_back(McpContent::blob_of(uri, part.bytes, type));
    } else if (mcp::is_text(part.bytes)) {
        contents.push_back(McpContent::text_of(uri, part.bytes));
    } else {
        contents.push_back(McpContent::blob_of(uri, part.bytes, "application/octet-stream"));
    }
    return contents;
}

IPYBOX_DECL awaitable<McpToolResult> McpService::guarded(std::weak_ptr<Impl> weak, std::string tool,
                                                         Handler handler, McpContext context,
                                                         json::object arguments) {
    std::string why;
    try {
        auto state = weak.lock();
        if (!state) throw Error(errc::cancelled, "the server is stopping");
        auto work = handler(std::move(state), std::move(context), std::move(arguments));
        co_return co_await std::move(work);
    } catch (const McpError&) {
        throw;
    } catch (const Error& error) {
        why = error.detail();
    }
    co_return failed(tool, why);
}

}  // namespace ipybox
