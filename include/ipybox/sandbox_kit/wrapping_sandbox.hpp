#pragma once
// What a sandbox around another one is made of.
#include <ipybox/sandbox.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ipybox {

// Does everything as the sandbox within: whoever derives from it overrides what differs. Its
// processes are those of the inner one, so that interrupt() reaches the command itself. Errors,
// threads and cancellation are the inner sandbox's.
class WrappingSandbox : public Sandbox {
public:
    // inner: such as Host::plugins->sandbox() returns; not null.
    explicit WrappingSandbox(std::unique_ptr<Sandbox> inner) : inner_(std::move(inner)) {}

    awaitable<Capabilities> probe() override { return inner_->probe(); }
    bool unix_sockets(const SandboxPolicy& policy) const override {
        return inner_->unix_sockets(policy);
    }
    std::string guest_address(const SandboxPolicy& policy, const Channel& channel) const override {
        return inner_->guest_address(policy, channel);
    }
    uid_t guest_user(const SandboxPolicy& policy) const override {
        return inner_->guest_user(policy);
    }
    awaitable<std::string> programs_problem(Programs wanted) override {
        return inner_->programs_problem(wanted);
    }
    awaitable<std::string> absent_names(SandboxPolicy policy) override {
        return inner_->absent_names(std::move(policy));
    }
    awaitable<std::unique_ptr<SandboxedProcess>> launch(SandboxPolicy policy,
                                                        std::vector<std::string> argv,
                                                        std::vector<Channel> channels,
                                                        Stdio stdio) override {
        return inner_->launch(std::move(policy), std::move(argv), std::move(channels), stdio);
    }

protected:
    // The sandbox within.
    Sandbox& inner() const noexcept { return *inner_; }

private:
    std::unique_ptr<Sandbox> inner_;
};

}  // namespace ipybox
