#include "answers.hpp"

#include <cmath>

#include "host.hpp"

namespace ipybox::app::host {
namespace {

std::string_view name_of(CodeExecutionResult::Status status) {
    using Status = CodeExecutionResult::Status;
    switch (status) {
        case Status::ok:
            return "ok";
        case Status::error:
            return "error";
        case Status::timed_out:
            return "timed_out";
        case Status::cancelled:
            return "cancelled";
        case Status::kernel_lost:
            return "kernel_lost";
        case Status::output_limit:
            return "output_limit";
        case Status::refused:
            return "refused";
    }
    return "error";
}

std::string_view name_of(CodeExecutionFile::Change change) {
    using Change = CodeExecutionFile::Change;
    return change == Change::created   ? "created"
           : change == Change::removed ? "removed"
                                       : "changed";
}

template <class T>
json::value or_null(const std::optional<T>& value) {
    return value ? json::value(*value) : json::value();
}

json::value measures_json(const std::optional<CodeExecutionMeasures>& measures) {
    if (!measures) return nullptr;
    json::array files;
    for (const auto& file : measures->files) {
        json::object entry;
        entry.emplace("path", file.path.string());
        entry.emplace("change", name_of(file.change));
        files.push_back(std::move(entry));
    }
    json::object object;
    object.emplace("files", std::move(files));
    object.emplace("files_complete", measures->files_complete);
    object.emplace("peak_memory", or_null(measures->peak_memory));
    return object;
}

}  // namespace

json::array texts_json(const std::vector<std::string>& texts) {
    json::array array;
    for (const auto& text : texts) array.emplace_back(text);
    return array;
}

json::object violation_json(const Violation& violation) {
    json::object object;
    object.emplace("layer", violation.layer);
    object.emplace("what", violation.what);
    object.emplace("count", violation.count);
    return object;
}

json::object result_json(CodeExecutionResult result, bool streams) {
    json::object object;
    object.emplace("status", name_of(result.status));
    object.emplace("execution", result.execution);
    object.emplace("value_repr", or_null(result.value_repr()));
    if (streams) {
        object.emplace("stdout", result.stdout_text());
        object.emplace("stderr", result.stderr_text());
    }
    object.emplace("text", or_null(result.text));
    json::array images, displays, violations;
    for (const auto& image : result.images) images.emplace_back(image.string());
    for (auto& display : result.displays) displays.push_back(std::move(display));
    for (const auto& violation : result.violations) violations.push_back(violation_json(violation));
    object.emplace("images", std::move(images));
    object.emplace("displays", std::move(displays));
    object.emplace("error", result.error);
    object.emplace("error_name", result.error_name);
    object.emplace("error_value", result.error_value);
    object.emplace("duration", std::chrono::duration<double>(result.duration).count());
    object.emplace("measures", measures_json(result.measures));
    object.emplace("violations", std::move(violations));
    return object;
}

json::object display_json(CodeExecutionDisplay display) {
    json::object object;
    object.emplace("data", std::move(display.data));
    object.emplace("metadata", std::move(display.metadata));
    object.emplace("display_id", display.display_id);
    object.emplace("is_result", display.is_result);
    object.emplace("is_update", display.is_update);
    return object;
}

json::object head_json(const std::string& file, const std::string& head) {
    json::object object;
    object.emplace("file", file);
    object.emplace("head", head);
    return object;
}

json::object span_json(const Span& span) {
    json::object object;
    object.emplace("kind", to_string(span.kind));
    object.emplace("id", span.id);
    object.emplace("parent", span.parent);
    object.emplace("root", span.root);
    object.emplace("session", span.session);
    object.emplace("name", span.name);
    object.emplace("begin", span.begin);
    object.emplace("end", span.end);
    object.emplace("outcome", span.outcome);
    return object;
}

json::value handle_json(const std::string& handle) {
    return handle.empty() ? json::value() : json::value(handle);
}

json::object progress_json(const std::string& session, const std::string& tools,
                           const std::string& call, const CallProgress& report) {
    json::object object;
    object.emplace("session", handle_json(session));
    object.emplace("tools", handle_json(tools));
    object.emplace("call", call);
    // A server's number may be beyond all doubles.
    object.emplace("progress", std::isfinite(report.progress) ? report.progress : 0);
    const bool known = report.total && std::isfinite(*report.total);
    object.emplace("total", known ? json::value(*report.total) : json::value());
    object.emplace("message", report.message);
    return object;
}

json::object call_json(const ToolCall& call) {
    json::object object;
    object.emplace("id", call.id);
    object.emplace("execution", call.execution);
    object.emplace("session", call.session);
    object.emplace("server", call.server);
    object.emplace("tool", call.tool);
    object.emplace("arguments", call.sent_arguments());
    object.emplace("annotations", call.annotations);
    object.emplace("input_schema", *call.input_schema);
    object.emplace("description", call.description);
    object.emplace("definition_hash", call.definition_hash);
    object.emplace("server_identity", call.server_identity);
    object.emplace("origin", to_string(call.origin));
    object.emplace("line", call.line);
    object.emplace("may_remember", call.may_remember);
    return object;
}

json::object variables_json(const std::vector<CodeVariable>& variables) {
    json::array array;
    for (const auto& variable : variables) {
        json::object object;
        object.emplace("name", variable.name);
        object.emplace("type", variable.type);
        object.emplace("size", or_null(variable.size));
        object.emplace("repr", variable.repr);
        array.push_back(std::move(object));
    }
    return only("variables", std::move(array));
}

json::object completions_json(const CodeCompletions& found) {
    json::object object;
    object.emplace("start", found.start);
    object.emplace("matches", texts_json(found.matches));
    return object;
}

json::object servers_json(const std::vector<ServerInfo>& servers) {
    using State = ServerInfo::State;
    json::array array;
    for (const auto& server : servers) {
        json::object object;
        object.emplace("name", server.name);
        object.emplace("type", server.type);
        object.emplace("state", server.state == State::running    ? "running"
                                : server.state == State::starting ? "starting"
                                                                  : "stopped");
        array.push_back(std::move(object));
    }
    return only("servers", std::move(array));
}

json::object tools_json(std::vector<ToolInfo> tools) {
    json::array array;
    for (auto& tool : tools) {
        json::object object;
        object.emplace("name", tool.name);
        object.emplace("title", tool.title);
        object.emplace("description", tool.description);
        object.emplace("input_schema", std::move(tool.input_schema));
        json::value output;
        if (!tool.output_schema.empty()) output = std::move(tool.output_schema);
        object.emplace("output_schema", std::move(output));
        object.emplace("read_only", or_null(tool.read_only));
        object.emplace("destructive", or_null(tool.destructive));
        object.emplace("idempotent", or_null(tool.idempotent));
        object.emplace("open_world", or_null(tool.open_world));
        array.push_back(std::move(object));
    }
    return only("tools", std::move(array));
}

json::object output_json(ToolOutput output) {
    json::object object;
    object.emplace("result", std::move(output.result));
    object.emplace("content", std::move(output.content));
    return object;
}

std::string_view kind_of_error(const Error& error) {
    if (error.code().category() != error_category) return "io_error";
    switch (static_cast<errc>(error.code().value())) {
        case errc::bad_argument:
            return "bad_argument";
        case errc::bad_config:
            return "bad_config";
        case errc::bad_plugin:
            return "bad_plugin";
        case errc::no_such_plugin:
            return "no_such_plugin";
        case errc::missing_dependency:
            return "missing_dependency";
        case errc::sandbox_refused:
            return "sandbox_refused";
        case errc::kernel_start_failed:
            return "kernel_start_failed";
        case errc::kernel_died:
            return "kernel_died";
        case errc::kernel_protocol:
            return "kernel_protocol";
        case errc::code_failed:
            return "code_failed";
        case errc::output_limit:
            return "output_limit";
        case errc::mcp_connection:
            return "mcp_connection";
        case errc::mcp_protocol:
            return "mcp_protocol";
        case errc::mcp_error:
            return "mcp_error";
        case errc::denied:
            return "denied";
        case errc::timed_out:
            return "timed_out";
        case errc::cancelled:
            return "cancelled";
        case errc::busy:
            return "busy";
        case errc::io_error:
            return "io_error";
        case errc::http_failed:
            return "http_failed";
        case errc::kernel_not_started:
            return "kernel_not_started";
    }
    return "internal";
}

json::object failure_of(json::value id, const std::exception_ptr& error) {
    try {
        std::rethrow_exception(error);
    } catch (const BadParams& problem) {
        return failure(std::move(id), mcp::rpc_invalid_params, problem.what(), "bad_argument",
                       problem.field());
    } catch (const Error& problem) {
        return failure(std::move(id), rpc_failed, problem.detail(), kind_of_error(problem));
    } catch (const boost::system::system_error& problem) {
        if (problem.code() == asio::error::operation_aborted)
            return failure(std::move(id), rpc_failed, "the request was cancelled", "cancelled");
        return failure(std::move(id), rpc_failed, problem.what(), "io_error");
    } catch (const std::filesystem::filesystem_error& problem) {
        return failure(std::move(id), rpc_failed, problem.what(), "io_error");
    } catch (const std::exception& problem) {
        return failure(std::move(id), mcp::rpc_internal_error, problem.what(), "internal");
    }
}

}  // namespace ipybox::app::host
