// ipybox policy: what a policy says to a call and which rule says it; what was answered "always".
#include <boost/asio/io_context.hpp>
#include <iostream>
#include <ipybox/approval/config.hpp>
#include <ipybox/approval/question_text.hpp>
#include <ipybox/approval/remembered_rules.hpp>
#include <ipybox/approval/rules.hpp>
#include <ipybox/config.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/tools/server_identity.hpp>
#include <memory>
#include <set>

#include "commands.hpp"
#include "run_to_end.hpp"

namespace ipybox::app {
namespace {

struct PolicyFlags {
    std::vector<std::filesystem::path> plugin_dirs;
    std::string file;
    std::string call;
    bool as_json = false;
};

ToolCall parse_call(const std::string& text) {
    const auto value = parse_json(text, "--call", Numbers::exact);
    const auto* object = value.if_object();
    const std::string accepted = "accepted: server, tool, arguments, annotations, session, origin";
    if (!object) throw Error(errc::bad_argument, "--call: must be an object; " + accepted);
    ToolCall call;
    call.session = "default";
    for (const auto& [key, field] : *object) {
        const auto wrong = [&](const std::string& what) {
            throw Error(errc::bad_argument, "--call: " + std::string(key) + " must be " + what);
        };
        if (key == "arguments" || key == "annotations") {
            if (!field.is_object()) wrong("an object");
            if (key == "arguments")
                call.set_arguments(field.get_object());
            else
                call.annotations = field.get_object();
            continue;
        }
        const bool known = key == "server" || key == "tool" || key == "session" || key == "origin";
        if (!known)
            throw Error(errc::bad_argument,
                        "--call: unknown key \"" + std::string(key) + "\"; " + accepted);
        if (!field.is_string()) wrong("a text");
        const std::string text_value(field.get_string());
        if (key == "server") call.server = text_value;
        if (key == "tool") call.tool = text_value;
        if (key == "session") call.session = text_value;
        if (key != "origin") continue;
        bool found = false;
        for (const auto origin :
             {CallOrigin::mcp, CallOrigin::shell, CallOrigin::shell_magic, CallOrigin::package,
              CallOrigin::registration, CallOrigin::program})
            if (to_string(origin) == text_value) call.origin = origin, found = true;
        if (!found) wrong("mcp, shell, shell_magic, package, register or program");
    }
    if (call.server.empty() || call.tool.empty())
        throw Error(errc::bad_argument, "--call: needs \"server\" and \"tool\"");
    return call;
}

// The policy with every console as "ask": a test asks nobody.
json::value without_console(const json::value& policy, int depth = 0) {
    if (const auto* name = policy.if_string(); name && *name == "console") return "ask";
    const auto* object = policy.if_object();
    if (!object || object->size() != 1 || depth > 16) return policy;
    const auto& entry = *object->begin();
    if (entry.key() == "console") return "ask";
    const auto* members = entry.value().if_array();
    const bool combines =
        entry.key() == "first_match" || entry.key() == "all_of" || entry.key() == "any_of";
    if (!members || !combines) return policy;
    json::array list;
    for (const auto& member : *members) list.push_back(without_console(member, depth + 1));
    json::object result;
    result[entry.key()] = std::move(list);
    return result;
}

// What the real policy decides when a person, if asked at all, gives this answer.
Decision decide(const json::value& policy, const std::string& file, const ToolCall& call,
                const std::vector<std::filesystem::path>& plugin_dirs, Verdict person,
                bool& asked) {
    asio::io_context context(1);
    auto registry = PluginRegistry::standard(plugin_dirs);
    Host host;
    host.executor = context.get_executor();
    host.ask = [&asked, person](ToolCall) -> awaitable<Decision> {
        asked = true;
        Decision answer(person);
        answer.by = "whoever is asked";
        co_return answer;
    };
    const auto made = make_policy(registry, host, policy, file);
    return run_to_end(context, made->decide(call));
}

std::string_view word(approval::Rule::Effect effect) {
    return effect == approval::Rule::Effect::allow  ? "allows"
           : effect == approval::Rule::Effect::deny ? "denies"
                                                    : "asks";
}

// Every rule of the policy against the call, in order.
void explain(const json::value& policy, const approval::CallFacts& facts, const std::string& place,
             json::array& lines) {
    const auto* object = policy.if_object();
    if (!object || object->size() != 1) return;
    const auto& entry = *object->begin();
    const std::string here = place + (place.empty() ? "" : "/") + std::string(entry.key());
    if (entry.key() != "rules") {
        if (const auto* members = entry.value().if_array())
            for (std::size_t i = 0; i < members->size(); ++i)
                explain((*members)[i], facts, here + "/" + std::to_string(i), lines);
        return;
    }
    const json::value& list = entry.value().is_object() ? entry.value().at("rules") : entry.value();
    const approval::RuleSet rules(list);
    const auto now = std::chrono::system_clock::now();
    for (std::size_t i = 0; i < rules.rules().size(); ++i) {
        const auto& rule = rules.rules()[i];
        std::vector<approval::Rule::Part> why;
        std::size_t steps = approval::rule_steps;
        const auto fit = rule.fits(facts, now, steps, &why);
        json::object line;
        line["place"] = here + "/" + std::to_string(i);
        line["rule"] = rule.label();
        line["effect"] = word(rule.effect());
        line["remember"] = rule.may_remember();
        line["fits"] = fit == approval::Fit::yes  ? "yes"
                       : fit == approval::Fit::no ? "no"
                                                  : "unclear";
        line["nearly"] = fit == approval::Fit::no && why.size() == 1 && rule.parts() > 1;
        json::array reasons;
        for (const auto& part : why)
            reasons.emplace_back(part.fit == approval::Fit::unclear
                                     ? approval::RuleSet::unclear_text(part)
                                     : part.what + " does not hold: " + part.value);
        line["why"] = std::move(reasons);
        lines.push_back(std::move(line));
    }
}

int test_policy(const PolicyFlags& flags) {
    const auto policy = read_policy(flags.file);
    const auto tested = without_console(policy);
    const ToolCall call = parse_call(flags.call);
    bool asked = false, asked_again = false;
    const Decision yes = decide(tested, flags.file, call, flags.plugin_dirs, Verdict::allow, asked);
    const Decision no =
        decide(tested, flags.file, call, flags.plugin_dirs, Verdict::deny, asked_again);
    const bool asks = asked && yes.verdict != no.verdict;
    const bool passes = !asks && yes.verdict == Verdict::pass;
    const bool allowed = !asks && yes.verdict == Verdict::allow;
    const Decision& decision = asks ? yes : no;
    const std::string verdict = asks ? "ask" : allowed ? "allow" : "deny";
    std::string reason = asks ? "" : decision.reason;
    if (passes) reason = "no policy judges this call, which denies it";

    json::array lines;
    const approval::CallFacts facts{
        call.server,           call.tool,       to_string(call.origin), call.session,
        call.sent_arguments(), call.annotations};
    explain(policy, facts, "", lines);
    if (flags.as_json) {
        json::object report;
        report["verdict"] = verdict;
        report["by"] = decision.by;
        report["reason"] = reason;
        report["rules"] = std::move(lines);
        std::cout << detail::write_json(report) << '\n';
    } else {
        std::cout << verdict << ": "
                  << approval::call_text(call.server, call.tool, call.sent_arguments()) << '\n';
        if (!decision.by.empty())
            std::cout << "decided by " << detail::printable(decision.by) << '\n';
        if (!reason.empty()) std::cout << "reason: " << detail::printable(reason) << '\n';
        for (const auto& entry : lines) {
            const auto& line = entry.as_object();
            const auto text = [&](const char* key) {
                return detail::printable(line.at(key).as_string());
            };
            const std::string fits = text("fits");
            std::cout << "  " << text("place") << ", " << text("rule") << ": "
                      << (fits == "yes" ? "fits, " + text("effect") +
                                              (line.at("remember").as_bool() ? "" : " each time")
                          : fits == "unclear" ? "cannot be told, denies"
                                              : "does not fit");
            if (line.at("nearly").as_bool()) std::cout << ", but nearly";
            for (const auto& why : line.at("why").as_array())
                std::cout << "\n    " << detail::printable(why.as_string());
            std::cout << '\n';
        }
    }
    return asks ? 3 : allowed ? 0 : 1;
}

// ---- what was answered "always" ----

struct RememberedFlags {
    std::string file;    // empty: the standard one
    std::string config;  // of MCP servers
    std::vector<std::size_t> numbers;
    bool as_json = false;

    RememberedRules rules() const {
        return file.empty() ? RememberedRules() : RememberedRules(std::filesystem::path(file));
    }
};

// The identities of the servers that are configured; nothing without a configuration.
std::optional<std::set<std::string>> configured_identities(const std::string& config) {
    if (config.empty()) return std::nullopt;
    std::set<std::string> identities;
    const auto servers = read_mcp_servers(parse_json(read_text_file(config), config), config);
    for (const auto& entry : servers) identities.insert(server_identity(entry.second));
    return identities;
}

// What is known of a rule, with why it is asked about again, if it is.
json::object described(const RememberedRule& one, const RememberedFlags& flags,
                       const std::optional<std::set<std::string>>& identities) {
    json::object line;
    line["effect"] = word(one.rule.effect());
    const auto* when = detail::object_of(one.written, "when");
    line["when"] = when ? *when : json::object();
    std::string stale = why_stale(one, std::chrono::system_clock::now());
    if (one.binding) {
        line["server"] = one.binding->server_identity();
        json::array tools;
        for (const auto& entry : one.binding->tools()) tools.emplace_back(entry.first);
        line["tools"] = std::move(tools);
        if (stale.empty() && identities && !one.binding->server_identity().empty() &&
            !identities->contains(one.binding->server_identity()))
            stale = "no server of " + flags.config + " is the one that it was made for";
    }
    if (!one.since.empty()) line["since"] = one.since;
    if (one.rule.expires()) line["expires"] = one.written.at("expires");
    line["stale"] = stale;
    return line;
}

int list_remembered(const RememberedFlags& flags) {
    const auto rules = flags.rules();
    const auto identities = configured_identities(flags.config);
    json::array lines;
    for (const auto& one : rules.list()) {
        json::object line;
        line["number"] = lines.size() + 1;
        for (auto& entry : described(one, flags, identities)) line[entry.key()] = entry.value();
        lines.push_back(std::move(line));
    }
    if (flags.as_json) {
        json::object report;
        report["file"] = rules.file().string();
        report["rules"] = std::move(lines);
        std::cout << detail::write_json(report) << '\n';
        return 0;
    }
    if (lines.empty()) std::cout << "nothing is remembered in " << rules.file().string() << '\n';
    for (const auto& entry : lines) {
        const auto& line = entry.get_object();
        const auto text = [&](const char* key) {
            return detail::printable(detail::string_of(line, key));
        };
        std::cout << line.at("number").to_number<std::size_t>() << "  " << text("effect") << ' '
                  << detail::printable(detail::write_json(line.at("when"))) << '\n';
        if (const auto server = text("server"); !server.empty())
            std::cout << "   server: " << server << '\n';
        if (const auto* tools = line.if_contains("tools")) {
            std::cout << "   tools:";
            for (const auto& tool : tools->get_array())
                std::cout << ' ' << approval::plain_name(tool.get_string());
            std::cout << '\n';
        }
        std::string times;
        for (const auto& [key, name] : {std::pair("since", "since"), {"expires", "until"}})
            if (line.contains(key)) times += std::string(" ") + name + ' ' + text(key);
        if (!times.empty()) std::cout << "  " << times << '\n';
        std::cout << "   " << (text("stale").empty() ? "holds" : "stale: " + text("stale")) << '\n';
    }
    return 0;
}

int forget_remembered(const RememberedFlags& flags) {
    const auto rules = flags.rules();
    rules.forget(flags.numbers);
    std::cout << "forgotten; " << rules.list().size() << " left in " << rules.file().string()
              << '\n';
    return 0;
}

void add_remembered(CLI::App& command, Action& action) {
    auto flags = std::make_shared<RememberedFlags>();
    const auto add_file = [&flags](CLI::App& one) {
        one.add_option("--file", flags->file,
                       "File of these rules; else ipybox/always.json in $XDG_CONFIG_HOME or "
                       "~/.config")
            ->type_name("FILE");
    };
    auto* list = command.add_subcommand(
        "list", "What was answered \"always\": for which server and tools, until when");
    list->footer(
        "A stale rule decides nothing: it has expired, or says nothing of server and tools. A tool "
        "that changed is asked about again as well, which is seen when it is called.");
    add_file(*list);
    list->add_option("--config", flags->config,
                     "File with MCP servers: rules of other servers are stale")
        ->type_name("FILE");
    list->add_flag("--json", flags->as_json, "Print a JSON object instead of text");
    list->callback([&action, flags] { action = [flags] { return list_remembered(*flags); }; });
    auto* forget =
        command.add_subcommand("forget", "Remove rules from what was answered \"always\"");
    add_file(*forget);
    forget->add_option("NUMBER", flags->numbers, "Numbers of `ipybox policy list`")->required();
    forget->callback([&action, flags] { action = [flags] { return forget_remembered(*flags); }; });
}

}  // namespace

void add_policy(CLI::App& app, Action& action) {
    auto flags = std::make_shared<PolicyFlags>();
    auto* command =
        app.add_subcommand("policy", "Try an approval policy out; what was answered \"always\"");
    command->require_subcommand(1);
    auto* test = command->add_subcommand(
        "test", "What a policy says to a call, which rule says it, and which nearly did");
    test->footer(
        "Exit code: 0 the call is allowed, 1 denied, 2 the policy or the call has a mistake, 3 a "
        "person is asked.\n"
        "Budgets are taken as unspent. A policy file is what --policy of `ipybox run` takes; "
        "docs/approval.md.");
    test->add_option("FILE", flags->file, "File with the policy")->required();
    test->add_option("--call", flags->call,
                     "The call, such as {\"server\": \"files\", \"tool\": \"write_file\", "
                     "\"arguments\": {\"path\": \"/x\"}, "
                     "\"annotations\": {\"readOnlyHint\": false}}; session and origin too")
        ->type_name("JSON")
        ->required();
    add_plugin_dir(*test, flags->plugin_dirs);
    test->add_flag("--json", flags->as_json, "Print a JSON object instead of text");
    test->callback([&action, flags] { action = [flags] { return test_policy(*flags); }; });
    add_remembered(*command, action);
}

}  // namespace ipybox::app
