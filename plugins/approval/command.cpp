// Asks a program: it reads the call as JSON and writes what it decides.
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <cstdlib>
#include <ipybox/approval/approval.hpp>
#include <ipybox/approval/config.hpp>
#include <ipybox/approval/question_text.hpp>
#include <ipybox/approval/rules.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/detail/utf8.hpp>
#include <ipybox/plugin.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <ipybox/sandbox_kit/program_judgement.hpp>

namespace {
using namespace ipybox;

constexpr std::size_t longest_answer = 64u << 10;  // bytes
constexpr std::size_t longest_rationale = 2000;    // bytes
constexpr std::size_t most_at_once = 4;            // programs; further calls wait
constexpr auto usual_deadline = std::chrono::seconds(30);

struct Settings {
    std::vector<std::string> argv;  // argv[0]: absolute
    std::map<std::string, std::string> env;
    Duration deadline = usual_deadline;
    std::string name;  // of the program, for people
    Secrets secrets;   // that the program was given: not for the code, nor for the log
};

Settings settings_from(const json::object& config) {
    Settings settings;
    for (const auto& word : config.at("command").as_array())
        settings.argv.emplace_back(word.get_string());
    const auto& program = settings.argv.front();
    // A path that leads where code could write is refused at each start, in words of its own.
    const bool is_path = program.find('/') != program.npos;
    const char* path = std::getenv("PATH");
    const auto found =
        find_program(program, path ? path : "", is_path ? Trust::named : Trust::judged);
    if (!found)
        throw Error(errc::bad_config, "command: there is no program " + detail::printable(program) +
                                          (is_path ? "" : " in PATH"));
    settings.argv.front() = found->string();
    settings.name = "command " + detail::printable(found->filename().string());
    if (const auto* deadline = config.if_contains("deadline")) {
        const auto span = approval::time_span(std::string_view(deadline->get_string()));
        if (!span)
            throw Error(errc::bad_config,
                        "deadline: must be a time such as \"30s\", \"5m\" or \"1h\"");
        settings.deadline = *span;
    }
    settings.env["LANG"] = "C.UTF-8";
    if (const auto* env = config.if_contains("env")) {
        Secrets all;
        const auto values = substitute_variables(*env, VariableSource(), "command/env", all);
        for (const auto& [name, value] : values.as_object()) {
            const std::string text(value.get_string());
            const bool login = text.find("://") != text.npos && !config::is_plain_place(text);
            if (login || config::names_a_secret(name)) settings.secrets.add(text);
            settings.env[name] = text;
        }
    }
    return settings;
}

json::object described(const ToolCall& call) {
    json::object text;
    text["origin"] = to_string(call.origin);
    text["server"] = call.server;
    text["server_identity"] = call.server_identity;
    text["tool"] = call.tool;
    text["description"] = call.description;
    text["annotations"] = call.annotations;
    text["input_schema"] = *call.input_schema;
    text["definition_hash"] = call.definition_hash;
    text["arguments"] = call.sent_arguments();
    text["session"] = call.session;
    text["execution"] = call.execution;
    text["call"] = call.id;
    // As people are shown it; null if it is too much to be shown.
    const auto shown = approval::question_text(call.server, call.tool, call.sent_arguments());
    text["question"] =
        shown.problem.empty() ? json::value(shown.name + '\n' + shown.text) : json::value();
    return text;
}

// What the program said: an allowance, a denial, or a pass, which is "ask".
struct Answer {
    Verdict verdict = Verdict::deny;
    std::string rationale;
};

// Throws Error: bad_config (it is no answer).
Answer read_answer(const std::string& text) {
    const std::string what = "its answer";
    const auto value = parse_json(text, what);
    approval::refuse_repeated_keys(text, what);
    const std::string form = R"(must be {"decision": "allow", "deny" or "ask", "rationale": text})";
    const auto* object = value.if_object();
    if (!object) throw Error(errc::bad_config, what + " " + form);
    for (const auto& entry : *object)
        if (entry.key() != "decision" && entry.key() != "rationale")
            throw Error(errc::bad_config, what + " has the unknown key \"" +
                                              detail::printable(entry.key()) + "\"; it " + form);
    const auto decision = detail::string_of(*object, "decision");
    const auto* rationale = object->if_contains("rationale");
    if (rationale && !rationale->is_string())
        throw Error(errc::bad_config, what + ": the rationale must be a text");
    Answer answer;
    if (rationale) answer.rationale = std::string(rationale->get_string());
    answer.rationale.resize(detail::utf8_border(answer.rationale, longest_rationale));
    if (decision == "allow")
        answer.verdict = Verdict::allow;
    else if (decision == "ask")
        answer.verdict = Verdict::pass;
    else if (decision != "deny")
        throw Error(errc::bad_config, what + " " + form);
    return answer;
}

class Command final : public ApprovalPolicy {
public:
    Command(Host& host, Settings settings)
        : host_(host), settings_(std::move(settings)), free_(host.executor) {
        refuse_written_parts();
    }

    awaitable<Decision> decide(ToolCall call) override {
        Answer answer;
        std::string problem;
        try {
            answer = co_await run(detail::write_json(described(call)) + '\n');
        } catch (const Error& error) {
            problem = error.detail();
        }
        Decision decision(answer.verdict, settings_.secrets.hide(std::move(answer.rationale)));
        decision.by = settings_.name;
        if (!problem.empty()) {
            decision.reason = "the approver failed: " + problem;
            host_.logger(LogLevel::warning, settings_.name + ": " + problem);
        }
        if (decision.verdict != Verdict::pass) co_return decision;
        Decision person = co_await ask_person(host_.ask, std::move(call));
        person.by = settings_.name + (person.by.empty() ? "" : ", " + person.by);
        if (person.verdict == Verdict::allow && person.reason.empty() && !decision.reason.empty())
            person.reason = settings_.name + " asked: " + decision.reason;
        co_return person;
    }

private:
    struct Place {  // of a program that runs
        explicit Place(Command& of) : command(of) { ++command.running_; }
        ~Place() {
            --command.running_;
            command.free_.notify();
        }
        Place(const Place&) = delete;
        Place& operator=(const Place&) = delete;
        Command& command;
    };

    // A session may have made a place writable since the last call. Throws Error: denied.
    void refuse_written_parts() const {
        const auto problem = sandbox_kit::judge_program(
            writable_places(), settings_.argv, settings_.env, "/", false, "put it elsewhere");
        if (problem) throw Error(errc::denied, *problem);
    }

    static awaitable<void> feed(ChildProcess& process, const std::string& text,
                                Clock::time_point deadline) {
        // What does not read it all may decide all the same.
        auto [error, size] =
            co_await asio::async_write(process.input(), asio::buffer(text), as_result);
        boost::system::error_code ignored;
        if (!error) process.input().close(ignored);
        co_await sleep_until(deadline);
    }

    static awaitable<void> listen(ChildProcess& process, std::string& text) {
        char chunk[4096];
        while (text.size() <= longest_answer) {
            auto [error, size] =
                co_await process.output().async_read_some(asio::buffer(chunk), as_result);
            if (error) break;
            text.append(chunk, size);
        }
    }

    // Throws Error: whatever keeps the program from answering.
    awaitable<Answer> run(std::string question) {
        while (running_ >= most_at_once) co_await free_.wait();
        const Place place(*this);
        refuse_written_parts();
        SpawnRequest request;
        request.argv = settings_.argv;
        request.env = settings_.env;
        if (!request.env.contains("PATH"))
            request.env["PATH"] = host_search_path("/usr/local/bin:/usr/bin:/bin");
        request.stdio = Stdio::pipes;
        ChildProcess process(host_.executor, std::move(request));
        const auto deadline = Clock::now() + settings_.deadline;
        std::string text;
        auto listening = listen(process, text);
        auto feeding = feed(process, question, deadline);
        const bool heard = co_await ends_first(std::move(listening), std::move(feeding));
        if (text.size() > longest_answer)
            throw Error(errc::bad_config,
                        "its answer has more than " + std::to_string(longest_answer) + " bytes");
        std::optional<ExitStatus> status;
        if (heard) status = co_await process.wait(deadline);
        if (!status) {
            const auto seconds =
                std::chrono::duration_cast<std::chrono::seconds>(settings_.deadline).count();
            throw Error(errc::io_error, "no answer within " + std::to_string(seconds) + " s");
        }
        if (status->code != 0) {
            // For the person, not for the code: nobody knows what a program says when it fails.
            if (const auto said = process.output_tail(); !said.empty())
                host_.logger(
                    LogLevel::warning,
                    settings_.name + " wrote: " + detail::printable(settings_.secrets.hide(said)));
            throw Error(errc::io_error, "it ended with exit code " + std::to_string(status->code));
        }
        co_return read_answer(text);
    }

    Host& host_;
    Settings settings_;
    Event free_;
    std::size_t running_ = 0;
};

constexpr Plugin self{
    .name = "command",
    .summary =
        "asks a program: the call as JSON on its standard input, its decision as JSON on its "
        "standard output; docs/approval.md",
    .config_schema =
        R"({"type": "object", "additionalProperties": false, "required": ["command"], "properties": {
        "command": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}, "description": "the program and its arguments; it starts in /"},
        "deadline": {"type": "string", "description": "how long it may take, such as \"30s\", which is the default; then the call is denied"},
        "env": {"type": "object", "additionalProperties": {"type": "string"}, "description": "its environment beside PATH and LANG; ${NAME} is a variable of ipybox's own"}}})",
    .make = +[](Host& host, const json::object& config) -> std::unique_ptr<ApprovalPolicy> {
        return std::make_unique<Command>(host, settings_from(config));
    },
};
}  // namespace

IPYBOX_PLUGIN(command, self)
