#pragma once
#include <ipybox/executor/service.hpp>

#include <ipybox/compilation.hpp>
#include <ipybox/executor/impl/service_state.hpp>

namespace ipybox {

IPYBOX_DECL json::object McpService::schema(json::object properties, std::size_t required) {
    json::object result{{"type", "object"}};
    json::array names;
    for (const auto& entry : properties)
        if (names.size() < required) names.emplace_back(entry.key());
    result.emplace("properties", std::move(properties));
    if (!names.empty()) result.emplace("required", std::move(names));
    return result;
}

IPYBOX_DECL json::object McpService::list_of_texts() {
    json::object list{{"type", "array"}}, text{{"type", "string"}};
    list.emplace("items", std::move(text));
    return list;
}

IPYBOX_DECL json::object McpService::parameter(std::string_view type, std::string_view description,
                                               json::value otherwise) {
    json::object result{{"type", type}, {"description", description}};
    if (!otherwise.is_null()) result.emplace("default", std::move(otherwise));
    return result;
}

IPYBOX_DECL json::object McpService::hints(bool reads, bool destroys, bool repeats, bool world) {
    return {{"readOnlyHint", reads},
            {"destructiveHint", destroys},
            {"idempotentHint", repeats},
            {"openWorldHint", world}};
}

IPYBOX_DECL void McpService::add_tool(Impl& state, std::string name, std::string title,
                                      std::string description, json::object properties,
                                      std::size_t required, json::object annotations,
                                      Handler handler, json::object output) {
    McpTool tool;
    tool.name = name;
    tool.title = std::move(title);
    tool.description = state.of_api(std::move(description));
    if (state.options.separate)
        properties.emplace(
            "session",
            parameter("string", "Which of your kernels; each name has one of its own", ""));
    tool.input_schema = schema(std::move(properties), required);
    if (state.options.structured) tool.output_schema = std::move(output);
    tool.annotations = std::move(annotations);
    if (handler == execute_cell && state.options.task_after > Duration::zero()) {
        tool.task = McpTaskUse::optional;
        tool.task_after = state.options.task_after;
    }
    tool.call = [weak = state.weak_from_this(), name, handler](McpContext context,
                                                               json::object arguments) {
        return guarded(weak, name, handler, std::move(context), std::move(arguments));
    };
    state.server->add_tool(std::move(tool));
}

IPYBOX_DECL void McpService::add_tools(Impl& state) {
    add_setup_tools(state);
    add_kernel_tools(state);
    add_search_tools(state);
    add_file_tools(state);
}

IPYBOX_DECL void McpService::add_setup_tools(Impl& state) {
    json::object properties, output;
    properties["server_name"] =
        parameter("string", "Name of the Python package: a lowercase identifier, such as files");
    json::object params = parameter(
        "object",
        "How the server is reached: {\"command\", \"args\", \"env\", \"cwd\"} for stdio, "
        "{\"url\", \"headers\", \"type\"} for HTTP. A stdio server starts in an empty directory: "
        "write paths of the workspace as ${WORKSPACE}/PATH");
    params.emplace("additionalProperties", true);
    properties["server_params"] = std::move(params);
    output["result"] = list_of_texts();
    add_tool(state, "register_mcp_server", "Register an MCP server",
             "Makes the tools of an MCP server callable from Python: writes the package "
             "mcptools/SERVER_NAME with one typed module "
             "for each tool. Use them as\n    from mcptools.SERVER_NAME import TOOL\n    result = "
             "TOOL.run(parameter=value)\n"
             "${NAME} in server_params is replaced by the variable of the environment or .env. "
             "Registering again replaces the "
             "package; reset() makes a kernel that has imported it see the new one. Packages "
             "outlive reset(). Returns the names of "
             "the tools.",
             std::move(properties), 2, hints(false, false, true, true), register_server,
             schema(std::move(output), 1));

    properties = {};
    properties["package_name"] =
        parameter("string", "A name, a requirement such as numpy>=1.20, or a git+https:// address");
    add_tool(state, "install_package", "Install a Python package",
             "Installs a Python package by pip for this workspace. It can be imported at once and "
             "outlives reset(). Returns what "
             "pip says, also when it fails.",
             std::move(properties), 1, hints(false, false, true, true), install);
}

IPYBOX_DECL void McpService::add_kernel_tools(Impl& state) {
    const json::object text{{"type", "string"}};
    json::object properties, output;
    properties["code"] = parameter("string", "Python code to execute in the IPython kernel");
    properties["timeout"] = parameter("number", "Seconds until the code is interrupted", 120);
    properties["max_output_chars"] =
        parameter("integer", "Characters of output to return; what exceeds them is cut", 5000);
    if (!state.options.executor.check)
        properties["check"] = parameter(
            "boolean",
            "Compare the code's calls of generated modules with what these take first. Code with a "
            "fault does not run: the faults are the answer",
            false);
    output["status"] = parameter(
        "string", "ok, error, timed_out, cancelled, kernel_lost, output_limit or refused");
    output["text"] = text;
    output["images"] = list_of_texts();
    output["error"] = text;
    add_tool(
        state, "execute_ipython_cell", "Execute Python code",
        "Executes Python code in an IPython kernel that keeps variables, imports and "
        "definitions from call to call. One cell "
        "runs at a time; `await` works at the top level. Returns what the code printed and the "
        "value of its last expression, "
        "then links to the images it made; nothing for nothing. An exception, a call of a tool "
        "that failed, or the timeout is "
        "an error with the traceback and the output until then; the kernel stays usable." +
            std::string(
                state.options.executor.check
                    ? " Calls of generated modules are compared with what these take "
                      "first: code with a fault does not run, and the faults are the answer."
                    : ""),
        std::move(properties), 1, hints(false, true, false, true), execute_cell,
        schema(std::move(output), 3));

    add_tool(state, "reset", "Reset the kernel",
             "Starts a new IPython kernel. Lost: variables, imports, definitions, connections to "
             "MCP servers, which come back when "
             "they are used. Kept: installed packages, files, mcptools/.",
             {}, 0, hints(false, true, true, false), reset);

    add_tool(state, "interrupt", "Interrupt the running cell",
             "Interrupts the cell that is running, if any; the kernel's state stays. The call that "
             "runs it returns its output.",
             {}, 0, hints(false, false, true, false), interrupt);
}

IPYBOX_DECL void McpService::add_search_tools(Impl& state) {
    json::object properties;
    properties["query"] = parameter(
        "string", "What the tool should do, in plain words; other wordings on further lines help");
    properties["limit"] = parameter("integer", "How many to return, at most 50", 5);
    add_tool(
        state, "search_tools", "Search what code can import",
        "Finds tools in mcptools and saved code actions in gentools by what they do; returns a "
        "line for each, best first: server.tool(parameters, optional?) – what it does.",
        std::move(properties), 1, hints(true, false, true, false), search);

    properties = {};
    properties["name"] =
        parameter("string", "server.tool, as search_tools writes it; several on further lines");
    add_tool(state, "describe_tool", "Describe a tool",
             "Says how a tool is called from Python: types and meaning of its parameters, keys of "
             "the result. Ask it before the first use of a tool.",
             std::move(properties), 1, hints(true, false, true, false), describe);

    properties = {};
    properties["server_name"] = parameter("string", "A package in mcptools: lists its tools", "");
    properties["tool_name"] = parameter("string", "And a module in it: returns its source", "");
    add_tool(state, "list_tools", "List what code can import",
             "Lists what code can import: without arguments the packages of mcptools and gentools, "
             "with server_name the tools of "
             "one, each with its parameters on a line, with tool_name as well the source of one "
             "module.",
             std::move(properties), 0, hints(true, false, true, false), list_tools);
}

IPYBOX_DECL void McpService::add_file_tools(Impl& state) {
    json::object properties;
    properties["path"] = parameter("string", "Where to, in the workspace");
    properties["content"] = parameter("string", "What the file should contain");
    json::object encoding = parameter("string", "How content is written", "utf-8");
    encoding.emplace("enum", json::array{"utf-8", "base64"});
    properties["encoding"] = std::move(encoding);
    properties["overwrite"] =
        parameter("boolean", "Whether a file that is there may be replaced", true);
    add_tool(state, "upload_file", "Write a file",
             "Writes a file in the workspace, where code can read it; makes directories as needed.",
             std::move(properties), 2, hints(false, true, true, false), upload);

    properties = {};
    properties["path"] = parameter("string", "Which file of the workspace");
    properties["offset"] = parameter("integer", "First byte to return", 0);
    properties["max_bytes"] =
        parameter("integer", "Bytes to return at most; without, as many as one result can hold");
    add_tool(
        state, "download_file", "Read a file",
        "Returns a file of the workspace: text, an image, or anything else as bytes. A part of "
        "a file is marked as such.",
        std::move(properties), 1, hints(true, false, true, false), download);
}

IPYBOX_DECL void McpService::add_resources(Impl& state) {
    const auto add = [&](const char* uri, const char* description) {
        McpResource resource;
        resource.uri = uri;
        resource.name = "workspace file";
        resource.description = description;
        resource.read = [weak = state.weak_from_this()](McpContext context, std::string asked,
                                                        json::object variables) {
            return read_resource(weak, std::move(context), std::move(asked), std::move(variables));
        };
        state.server->add_resource(std::move(resource));
    };
    add("ipybox://workspace/{+path}", "A file in the workspace of the code");
    if (state.options.separate)
        add("ipybox://sessions/{session}/{+path}",
            "A file in the workspace of one of your sessions");
}

IPYBOX_DECL void McpService::add_prompts(Impl& state) {
    const auto add = [&](const char* name, const char* title, const char* description,
                         const char* argument, const char* argument_description,
                         std::string_view shown) {
        const auto text = state.of_api(std::string(shown));
        McpPrompt prompt;
        prompt.name = name;
        prompt.title = title;
        prompt.description = description;
        McpArgument wanted;
        wanted.name = argument;
        wanted.description = argument_description;
        wanted.required = true;
        prompt.arguments.push_back(std::move(wanted));
        prompt.get = [text, argument](McpContext, json::object arguments) {
            return filled(text, std::string(detail::string_of(arguments, argument)));
        };
        state.server->add_prompt(std::move(prompt));
    };
    add("code_action", "Solve a task by code",
        "How to solve a task with code actions instead of single tool calls", "task",
        "What is to be done",
        "Solve the task below by code actions.\n\n"
        "1. search_tools with words of the task; describe_tool shows the parameters and the "
        "result of a "
        "tool. If nothing fits, plain Python may do, or register_mcp_server.\n"
        "2. Write one cell for execute_ipython_cell that makes all the calls: loop, feed "
        "results into further calls, handle "
        "what is missing. Tools are functions: from mcptools.SERVER import TOOL; "
        "TOOL.run(parameter=value).\n"
        "3. Print the answer and what the next step needs; keep the rest in variables, which "
        "stay for later cells.\n"
        "4. When a call is rejected, do not try to reach the same by other means: say so, or "
        "go on without it.\n\nTask: ");
    add("save_code_action", "Save a code action",
        "How to keep a code action that worked, as a tool for later", "name",
        "What to call it, such as reports.longest",
        "The code action that just worked is to be kept for later. Write it as two files with "
        "upload_file: "
        "gentools/CATEGORY/TOOL/impl.py with the code, and gentools/CATEGORY/TOOL/api.py with "
        "a docstring whose first line says "
        "what it does, typed parameters, and one function run() that calls the implementation. "
        "Replace what was specific to "
        "this case by parameters. Then call it once from a new cell and compare the result. "
        "Name: ");
}

IPYBOX_DECL awaitable<json::array> McpService::filled(std::string text, std::string argument) {
    json::array messages;
    messages.push_back(McpContent::message("user", McpContent::text(text + argument)));
    co_return messages;
}

}  // namespace ipybox
