// The server that the MCP conformance suite tests: what its scenarios ask a server to offer.
// Usage: conformance_server --port N, or without a port on standard input and output.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>
#include <cstdlib>
#include <ipybox/mcp/http_server.hpp>
#include <optional>
#include <string>

using namespace ipybox;
using namespace std::chrono_literals;

namespace {

using Arguments = json::object;
using Result = awaitable<McpToolResult>;

// One red pixel, and a WAV file without samples.
std::string png() {
    return *detail::decode_base64(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5Erk"
        "Jg"
        "gg==");
}
std::string wav() {
    return *detail::decode_base64(
        "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA==");
}

json::object object(std::string_view text) { return json::parse(text).as_object(); }

awaitable<void> pause(Duration time) { co_await sleep_until(Clock::now() + time); }

json::object asking_name(std::string_view property = "name") {
    json::object schema = object(R"({"type": "object"})");
    schema["properties"] = json::object{{property, {{"type", "string"}}}};
    schema["required"] = json::array{property};
    return schema;
}

json::object sampling(std::string_view prompt, int tokens) {
    json::object params, message = McpContent::message("user", McpContent::text(prompt));
    params["messages"] = json::array{message};
    params["maxTokens"] = tokens;
    return params;
}

std::string text_of(const json::object& sample) {
    const auto& content = sample.at("content");
    if (content.is_object()) return std::string(detail::string_of(content.get_object(), "text"));
    return json::serialize(content);
}

std::string told(std::string_view what, const json::object& answer) {
    const auto* content = answer.if_contains("content");
    return std::string(what) + "action=" + std::string(detail::string_of(answer, "action")) +
           ", content=" + (content != nullptr ? json::serialize(*content) : "{}");
}

void add(McpServer& server, std::string name, std::string description,
         std::function<Result(McpContext, Arguments)> call, json::object schema = {}) {
    server.add_tool({.name = std::move(name),
                     .description = std::move(description),
                     .input_schema = std::move(schema),
                     .call = std::move(call)});
}

void add_content_tools(McpServer& server) {
    add(server, "test_simple_text", "Returns a text", [](McpContext, Arguments) -> Result {
        co_return "This is a simple text response for testing.";
    });
    add(server, "test_image_content", "Returns an image", [](McpContext, Arguments) -> Result {
        McpToolResult result;
        result.content.push_back(McpContent::image(png(), "image/png"));
        co_return result;
    });
    add(server, "test_audio_content", "Returns a sound", [](McpContext, Arguments) -> Result {
        McpToolResult result;
        result.content.push_back(McpContent::audio(wav(), "audio/wav"));
        co_return result;
    });
    add(server, "test_embedded_resource", "Returns a resource",
        [](McpContext, Arguments) -> Result {
            McpToolResult result;
            auto contents = McpContent::text_of("test://embedded-resource",
                                                "This is an embedded resource content.");
            result.content.push_back(McpContent::embedded(std::move(contents)));
            co_return result;
        });
    add(server, "test_multiple_content_types", "Returns three kinds of content",
        [](McpContext, Arguments) -> Result {
            McpToolResult result;
            result.content.push_back(McpContent::text("Multiple content types test:"));
            result.content.push_back(McpContent::image(png(), "image/png"));
            auto contents =
                McpContent::text_of("test://mixed-content-resource",
                                    R"({"test":"data","value":123})", "application/json");
            result.content.push_back(McpContent::embedded(std::move(contents)));
            co_return result;
        });
    add(server, "test_error_handling", "Fails", [](McpContext, Arguments) -> Result {
        throw Error(errc::bad_argument, "This tool intentionally returns an error for testing");
        co_return McpToolResult();
    });
    server.add_tool(
        {.name = "test_structured_content",
         .description = "Returns structured content",
         .output_schema = object(R"({"type": "object", "properties": {"value": {"type": "integer"}},
                                                 "required": ["value"]})"),
         .call = [](McpContext, Arguments) -> Result {
             McpToolResult result;
             result.structured = json::object{{"value", 42}};
             co_return result;
         }});
    add(
        server, "json_schema_2020_12_tool", "Has an input schema of many keywords",
        [](McpContext, Arguments arguments) -> Result { co_return json::serialize(arguments); },
        object(R"({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "$defs": {"address": {"$anchor": "addressDef", "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
            "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"},
                "contactMethod": {"type": "string", "enum": ["phone", "email"]},
                "phone": {"type": "string"}, "email": {"type": "string"}},
            "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
            "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
            "then": {"required": ["phone"]}, "else": {"required": ["email"]},
            "additionalProperties": false})"));
    add(
        server, "test_x_mcp_header", "Has a parameter that comes as header too",
        [](McpContext, Arguments arguments) -> Result { co_return json::serialize(arguments); },
        object(
            R"({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"},
            "level": {"type": "integer"}}})"));
}

void add_talking_tools(McpServer& server) {
    const auto logging = [](McpContext context, Arguments) -> Result {
        context.log("info", "Tool execution started");
        co_await pause(50ms);
        context.log("info", "Tool processing data");
        co_await pause(50ms);
        context.log("info", "Tool execution completed");
        co_return "logged";
    };
    add(server, "test_tool_with_logging", "Logs three lines", logging);
    add(server, "test_logging_tool", "Logs three lines", logging);
    add(server, "test_tool_with_progress", "Reports progress",
        [](McpContext context, Arguments) -> Result {
            for (const int done : {0, 50, 100}) {
                context.progress(done, 100);
                co_await pause(50ms);
            }
            co_return "done";
        });
    add(server, "test_reconnection", "Ends its stream early; the client comes back",
        [](McpContext context, Arguments) -> Result {
            context.close_stream();
            co_await pause(100ms);
            co_return "Reconnection test completed";
        });
    add(
        server, "test_sampling", "Asks the client's model",
        [](McpContext context, Arguments arguments) -> Result {
            auto params = sampling(arguments.at("prompt").as_string(), 100);
            const auto sample = co_await context.sample(std::move(params));
            co_return "LLM response: " + text_of(sample);
        },
        asking_name("prompt"));
    add(
        server, "test_elicitation", "Asks the person",
        [](McpContext context, Arguments arguments) -> Result {
            auto schema = object(R"({"type": "object", "properties": {
                "username": {"type": "string", "description": "User's response"},
                "email": {"type": "string", "description": "User's email address"}},
                "required": ["username", "email"]})");
            std::string message(arguments.at("message").as_string());
            const auto answer = co_await context.elicit(std::move(message), std::move(schema));
            co_return told("User response: ", answer);
        },
        asking_name("message"));
    add(server, "test_elicitation_sep1034_defaults", "Asks with default values",
        [](McpContext context, Arguments) -> Result {
            auto schema = object(R"({"type": "object", "properties": {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": true}}})");
            const auto answer = co_await context.elicit("Please confirm", std::move(schema));
            co_return told("Elicitation completed: ", answer);
        });
    add(server, "test_elicitation_sep1330_enums", "Asks with all kinds of choices",
        [](McpContext context, Arguments) -> Result {
            auto schema = object(R"({"type": "object", "properties": {
            "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
            "titledSingle": {"type": "string", "oneOf": [{"const": "value1", "title": "First Option"},
                {"const": "value2", "title": "Second Option"}, {"const": "value3", "title": "Third Option"}]},
            "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"]},
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
            "titledMulti": {"type": "array", "items": {"anyOf": [{"const": "value1", "title": "First Choice"},
                {"const": "value2", "title": "Second Choice"}, {"const": "value3", "title": "Third Choice"}]}}}})");
            const auto answer = co_await context.elicit("Please choose", std::move(schema));
            co_return told("Elicitation completed: ", answer);
        });
    add(server, "test_missing_capability", "Needs sampling",
        [](McpContext context, Arguments) -> Result {
            context.require("sampling");
            co_return "the client can sample";
        });
    add(server, "test_streaming_elicitation", "Asks after reporting progress",
        [](McpContext context, Arguments) -> Result {
            context.progress(0, 1);
            auto schema = asking_name();
            const auto answer = co_await context.elicit("Who is it?", std::move(schema));
            co_return told("", answer);
        });
}

void add_asking_tools(McpServer& server) {
    const auto ask_name = [](McpContext context, Arguments) -> Result {
        auto schema = asking_name();
        const auto answer =
            co_await context.elicit("What is your name?", std::move(schema), "user_name");
        co_return told("Hello: ", answer);
    };
    add(server, "test_input_required_result_elicitation", "Asks for a name", ask_name);
    add(server, "test_input_required_result_sampling", "Asks for a completion",
        [](McpContext context, Arguments) -> Result {
            auto params = sampling("What is the capital of France?", 100);
            const auto sample = co_await context.sample(std::move(params), "capital_question");
            co_return text_of(sample);
        });
    add(server, "test_input_required_result_list_roots", "Asks for the roots",
        [](McpContext context, Arguments) -> Result {
            const auto roots = co_await context.roots("client_roots");
            co_return json::serialize(roots);
        });
    const auto confirm = [](McpContext context, Arguments) -> Result {
        auto schema = object(
            R"({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]})");
        const auto answer = co_await context.elicit("Please confirm", std::move(schema), "confirm");
        co_return told("state-ok ", answer);
    };
    add(server, "test_input_required_result_request_state", "Keeps its state over a question",
        confirm);
    add(server, "test_input_required_result_tampered_state", "Refuses a forged state", confirm);
    add(server, "test_input_required_result_multiple_inputs", "Asks three things at once",
        [](McpContext context, Arguments) -> Result {
            json::object elicitation, questions;
            elicitation["message"] = "What is your name?";
            elicitation["requestedSchema"] = asking_name();
            questions["user_name"] =
                json::object{{"method", "elicitation/create"}, {"params", elicitation}};
            questions["greeting"] = json::object{{"method", "sampling/createMessage"},
                                                 {"params", sampling("Generate a greeting", 50)}};
            questions["client_roots"] =
                json::object{{"method", "roots/list"}, {"params", json::object()}};
            const auto answers = co_await context.ask(std::move(questions));
            co_return json::serialize(answers);
        });
    add(server, "test_input_required_result_multi_round", "Asks one thing after the other",
        [](McpContext context, Arguments) -> Result {
            auto schema = asking_name();
            const auto first =
                co_await context.elicit("Step 1: What is your name?", std::move(schema), "step1");
            schema = asking_name("color");
            const auto second = co_await context.elicit("Step 2: What is your favorite color?",
                                                        std::move(schema), "step2");
            co_return told("", first) + told(" ", second);
        });
    add(server, "test_input_required_result_capabilities", "Asks only for what the client can do",
        [](McpContext context, Arguments) -> Result {
            json::object questions;
            if (context.supports("sampling"))
                questions["greeting"] = json::object{{"method", "sampling/createMessage"},
                                                     {"params", sampling("Greet", 50)}};
            if (context.supports("elicitation.form")) {
                json::object elicitation{{"message", "What is your name?"},
                                         {"requestedSchema", asking_name()}};
                questions["user_name"] =
                    json::object{{"method", "elicitation/create"}, {"params", elicitation}};
            }
            const auto answers = co_await context.ask(std::move(questions));
            co_return json::serialize(answers);
        });
    server.add_prompt(
        {.name = "test_input_required_result_prompt",
         .description = "Asks for a context",
         .get = [](McpContext context, Arguments) -> awaitable<json::array> {
             auto schema = asking_name("context");
             const auto answer = co_await context.elicit("What context should the prompt use?",
                                                         std::move(schema), "user_context");
             json::array messages;
             messages.push_back(McpContent::message("user", McpContent::text(told("", answer))));
             co_return messages;
         }});
    // What the scenarios of subscriptions change.
    add(server, "test_trigger_tool_change", "Tells that the tools changed",
        [&server](McpContext, Arguments) -> Result {
            server.tools_changed();
            co_return "told";
        });
    add(server, "test_trigger_prompt_change", "Tells that the prompts changed",
        [&server](McpContext, Arguments) -> Result {
            server.prompts_changed();
            co_return "told";
        });
    add(server, "test_update_resource", "Tells that test://watched-resource changed",
        [&server](McpContext, Arguments) -> Result {
            server.resource_updated("test://watched-resource");
            co_return "told";
        });
}

// What the scenarios of the extension io.modelcontextprotocol/tasks call.
void add_task_tools(McpServer& server) {
    add(
        server, "greet", "Greets, and never as a task",
        [](McpContext, Arguments arguments) -> Result {
            co_return "Hello, " + std::string(arguments.at("name").as_string()) + "!";
        },
        asking_name());
    const auto add_task = [&server](std::string name, std::string description, McpTaskUse use,
                                    std::function<Result(McpContext, Arguments)> call,
                                    json::object schema = {},
                                    std::optional<Duration> after = Duration::zero()) {
        server.add_tool({.name = std::move(name),
                         .description = std::move(description),
                         .input_schema = std::move(schema),
                         .task = use,
                         .task_after = after,
                         .call = std::move(call)});
    };
    add_task(
        "slow_compute", "Sleeps", McpTaskUse::optional,
        [](McpContext, Arguments arguments) -> Result {
            const auto seconds = arguments.at("seconds").to_number<int>();
            co_await pause(std::chrono::seconds(seconds));
            co_return "computed for " + std::to_string(seconds) + " s";
        },
        object(R"({"type": "object", "properties": {"seconds": {"type": "integer"},
                   "label": {"type": "string"}}, "required": ["seconds"]})"));
    add_task("failing_job", "Fails", McpTaskUse::required, [](McpContext, Arguments) -> Result {
        co_await pause(1s);
        throw Error(errc::io_error, "This job always fails");
        co_return McpToolResult();
    });
    add_task("protocol_error_job", "Ends in a protocol error", McpTaskUse::optional,
             [](McpContext, Arguments) -> Result {
                 co_await pause(200ms);
                 throw McpError(mcp::rpc_internal_error, "This job breaks the protocol");
                 co_return McpToolResult();
             });
    add_task(
        "confirm_delete", "Asks before it deletes", McpTaskUse::optional,
        [](McpContext context, Arguments arguments) -> Result {
            auto schema = object(R"({"type": "object", "properties": {
                "confirm": {"type": "boolean"}}, "required": ["confirm"]})");
            const std::string name(detail::string_of(arguments, "filename"));
            const auto answer =
                co_await context.elicit("Delete " + name + "?", std::move(schema), "confirm");
            co_return told("", answer);
        },
        object(R"({"type": "object", "properties": {"filename": {"type": "string"}}})"));
    add_task("multi_input", "Asks two things at once", McpTaskUse::optional,
             [](McpContext context, Arguments) -> Result {
                 json::object questions;
                 for (const auto& [key, type] :
                      {std::pair("name", "string"), std::pair("confirm", "boolean")}) {
                     json::object schema{{"type", "object"}}, params{{"message", key}};
                     schema["properties"] = json::object{{key, {{"type", type}}}};
                     params["mode"] = "form";
                     params["requestedSchema"] = std::move(schema);
                     questions[key] =
                         json::object{{"method", "elicitation/create"}, {"params", params}};
                 }
                 const auto answers = co_await context.ask(std::move(questions));
                 co_return json::serialize(answers);
             });
    add_task(
        "test_tool_with_task", "Asks first, and becomes a task then", McpTaskUse::required,
        [](McpContext context, Arguments) -> Result {
            auto schema = asking_name();
            const auto answer =
                co_await context.elicit("What is your name?", std::move(schema), "user_name");
            context.become_task();
            co_await pause(200ms);
            co_return told("Hello: ", answer);
        },
        {}, std::nullopt);
}

void add_resources(McpServer& server) {
    using Contents = awaitable<json::array>;
    server.add_resource({.uri = "test://static-text",
                         .name = "static-text",
                         .description = "A text",
                         .mime_type = "text/plain",
                         .read = [](McpContext, std::string uri, Arguments) -> Contents {
                             json::array contents;
                             contents.push_back(McpContent::text_of(
                                 uri, "This is the content of the static text resource."));
                             co_return contents;
                         }});
    server.add_resource({.uri = "test://static-binary",
                         .name = "static-binary",
                         .description = "An image",
                         .mime_type = "image/png",
                         .read = [](McpContext, std::string uri, Arguments) -> Contents {
                             json::array contents;
                             contents.push_back(McpContent::blob_of(uri, png(), "image/png"));
                             co_return contents;
                         }});
    server.add_resource({.uri = "test://watched-resource",
                         .name = "watched-resource",
                         .description = "A text that changes",
                         .mime_type = "text/plain",
                         .read = [](McpContext, std::string uri, Arguments) -> Contents {
                             json::array contents;
                             contents.push_back(McpContent::text_of(uri, "watched"));
                             co_return contents;
                         }});
    server.add_resource(
        {.uri = "test://template/{id}/data",
         .name = "template",
         .description = "Data for an id",
         .mime_type = "application/json",
         .read = [](McpContext, std::string uri, Arguments variables) -> Contents {
             const std::string id(variables.at("id").as_string());
             json::object data{{"id", id}, {"templateTest", true}, {"data", "Data for ID: " + id}};
             json::array contents;
             contents.push_back(
                 McpContent::text_of(uri, json::serialize(data), "application/json"));
             co_return contents;
         }});
}

void add_prompts(McpServer& server) {
    using Messages = awaitable<json::array>;
    server.add_prompt({.name = "test_simple_prompt",
                       .description = "A prompt without arguments",
                       .get = [](McpContext, Arguments) -> Messages {
                           json::array messages;
                           messages.push_back(McpContent::message(
                               "user", McpContent::text("This is a simple prompt for testing.")));
                           co_return messages;
                       }});
    server.add_prompt(
        {.name = "test_prompt_with_arguments",
         .description = "A prompt with two arguments",
         .arguments = {{.name = "arg1", .description = "First test argument", .required = true},
                       {.name = "arg2", .description = "Second test argument", .required = true}},
         .get = [](McpContext, Arguments given) -> Messages {
             json::array messages;
             const std::string text = "Prompt with arguments: arg1='" +
                                      std::string(given.at("arg1").as_string()) + "', arg2='" +
                                      std::string(given.at("arg2").as_string()) + "'";
             messages.push_back(McpContent::message("user", McpContent::text(text)));
             co_return messages;
         },
         .complete = [](McpContext, std::string, std::string typed,
                        Arguments) -> awaitable<McpCompletion> {
             McpCompletion found;
             for (const char* word : {"paris", "park", "party"})
                 if (std::string_view(word).starts_with(typed)) found.values.emplace_back(word);
             co_return found;
         }});
    server.add_prompt(
        {.name = "test_prompt_with_embedded_resource",
         .description = "A prompt with a resource",
         .arguments = {{.name = "resourceUri",
                        .description = "URI of the resource to embed",
                        .required = true}},
         .get = [](McpContext, Arguments given) -> Messages {
             json::array messages;
             auto contents = McpContent::text_of(given.at("resourceUri").as_string(),
                                                 "Embedded resource content for testing.");
             messages.push_back(
                 McpContent::message("user", McpContent::embedded(std::move(contents))));
             messages.push_back(McpContent::message(
                 "user", McpContent::text("Please process the embedded resource above.")));
             co_return messages;
         }});
    server.add_prompt(
        {.name = "test_prompt_with_image",
         .description = "A prompt with an image",
         .get = [](McpContext, Arguments) -> Messages {
             json::array messages;
             messages.push_back(McpContent::message("user", McpContent::image(png(), "image/png")));
             messages.push_back(
                 McpContent::message("user", McpContent::text("Please analyze the image above.")));
             co_return messages;
         }});
}

}  // namespace

int main(int argc, char** argv) {
    std::string port;
    McpHttpOptions http_options;
    http_options.sse_path = "/sse";
    for (int i = 1; i + 1 < argc; i += 2) {
        if (std::string_view(argv[i]) == "--port") port = argv[i + 1];
        if (std::string_view(argv[i]) == "--token") http_options.tokens.emplace_back(argv[i + 1]);
    }
    asio::io_context context(1);
    McpServerOptions options;
    options.name = "ipybox-conformance";
    options.instructions = "A server for tests.";
    McpServer server(context.get_executor(), options);
    add_content_tools(server);
    add_talking_tools(server);
    add_asking_tools(server);
    add_task_tools(server);
    add_resources(server);
    add_prompts(server);
    asio::signal_set signals(context, SIGTERM, SIGINT, SIGHUP);
    signals.async_wait([&](boost::system::error_code, int) { context.stop(); });
    McpHttpServer http(server, http_options);
    if (port.empty()) {
        asio::co_spawn(context, server.serve_stdio(), [&](std::exception_ptr) { context.stop(); });
    } else {
        const auto bound =
            http.listen("127.0.0.1", static_cast<unsigned short>(std::atoi(port.c_str())));
        std::printf("http://127.0.0.1:%d/mcp\n", bound);
        std::fflush(stdout);
    }
    context.run();
}
