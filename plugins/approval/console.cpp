// Asks the person at the terminal of this process, whoever else could be asked.
#include <ipybox/approval/console.hpp>
#include <ipybox/plugin.hpp>

namespace {
using namespace ipybox;

ConsoleOptions options_from(const json::object& config) {
    ConsoleOptions options;
    if (const auto* file = config.if_contains("always"))
        options.granted =
            std::make_shared<GrantedRules>(RememberedRules(std::string(file->get_string())));
    if (const auto* terminal = config.if_contains("terminal"))
        options.terminal = std::string(terminal->get_string());
    return options;
}

class AtConsole final : public ApprovalPolicy {
public:
    AtConsole(Host& host, const json::object& config)
        : console_(host.executor, options_from(config)) {
        if (const auto* remember = config.if_contains("remember"))
            may_remember_ = remember->get_bool();
    }
    awaitable<Decision> decide(ToolCall call) override {
        call.may_remember = call.may_remember && may_remember_;
        Decision decision = co_await console_.ask(std::move(call));
        if (decision.verdict == Verdict::pass)
            decision = Decision(Verdict::deny, "there is no terminal to ask at");
        co_return decision;
    }

private:
    Console console_;
    bool may_remember_ = true;
};

constexpr Plugin self{
    .name = "console",
    .summary = "asks at the terminal: once, for this session, always, no, no with a reason",
    .config_schema = R"({"type": "object", "additionalProperties": false, "properties": {
        "always": {"type": "string", "minLength": 1, "description": "file of the rules made by \"always\"; else ipybox/always.json in $XDG_CONFIG_HOME or ~/.config"},
        "remember": {"type": "boolean", "description": "false: a yes never holds for later calls"},
        "terminal": {"type": "string", "minLength": 1, "description": "the terminal, else /dev/tty"}}})",
    .make = +[](Host& host, const json::object& config) -> std::unique_ptr<ApprovalPolicy> {
        return std::make_unique<AtConsole>(host, config);
    },
};
}  // namespace

IPYBOX_PLUGIN(console, self)
