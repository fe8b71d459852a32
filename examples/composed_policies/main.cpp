// Approval policies put together in C++: one of your own, rules from a plugin, and a person for the
// rest. A real program hands the result to CodeExecutorOptions::make_policy; this one shows what it
// says to some calls.
//
//   IPYBOX_PLUGIN_PATH=build/plugins build/examples/composed_policies
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/json/parse.hpp>
#include <iostream>
#include <ipybox/approval/config.hpp>
#include <set>

namespace {
using namespace ipybox;

// Only servers that the application knows, whatever else is decided.
class Known final : public ApprovalPolicy {
public:
    explicit Known(std::set<std::string> servers) : servers_(std::move(servers)) {}

    awaitable<Decision> decide(ToolCall call) override {
        if (servers_.contains(call.server)) co_return Decision(Verdict::allow);
        co_return Decision(Verdict::deny, "the server " + call.server + " is not known");
    }

private:
    std::set<std::string> servers_;
};

constexpr const char* rules = R"([
    {"name": "deletions", "when": {"tool": "*delete*"}, "then": {"deny": "nothing is deleted here"}},
    {"name": "reads", "when": {"annotations": {"readOnlyHint": true}}, "then": "allow"}])";

PolicyPtr compose(PluginRegistry& registry, Host& host) {
    PolicyList choice;  // the first that does not pass
    const json::object by_rules{{"rules", json::parse(rules)}};
    choice.push_back(registry.make<ApprovalPolicy>("rules", host, by_rules));
    choice.push_back(registry.make<ApprovalPolicy>("ask", host, {}));
    PolicyList both;  // none may deny
    both.push_back(std::make_unique<Known>(std::set<std::string>{"files", "mail"}));
    both.push_back(std::make_unique<FirstMatch>(std::move(choice)));
    return std::make_unique<AllOf>(std::move(both));
}

ToolCall call(std::string server, std::string tool, bool read_only) {
    ToolCall made;
    made.server = std::move(server);
    made.tool = std::move(tool);
    made.annotations["readOnlyHint"] = read_only;
    return made;
}

awaitable<void> judge(PolicyPtr policy, std::vector<ToolCall> calls) {
    for (const auto& made : calls) {
        const Decision decision = co_await approve(*policy, made, std::chrono::seconds(60));
        std::cout << made.server << '.' << made.tool << ": "
                  << (decision.verdict == Verdict::allow ? "allowed" : "denied, " + decision.reason)
                  << '\n';
    }
}
}  // namespace

int main() try {
    asio::io_context context(1);
    auto registry = PluginRegistry::standard();
    Host host;
    host.executor = context.get_executor();
    host.ask = [](ToolCall asked) -> awaitable<Decision> {  // here a person would be asked
        if (asked.tool == "send_mail") co_return Decision(Verdict::allow);
        co_return Decision(Verdict::deny, "the person said no");
    };
    std::vector<ToolCall> calls;
    calls.push_back(call("files", "read_text_file", true));
    calls.push_back(call("files", "delete_file", true));
    calls.push_back(call("files", "write_file", false));
    calls.push_back(call("mail", "send_mail", false));
    calls.push_back(call("shop", "list_orders", true));
    std::exception_ptr failure;
    asio::co_spawn(context, judge(compose(registry, host), std::move(calls)),
                   [&](std::exception_ptr error) { failure = error; });
    context.run();
    if (failure) std::rethrow_exception(failure);
} catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
