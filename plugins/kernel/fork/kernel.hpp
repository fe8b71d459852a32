#pragma once
// The kernel that the host talks to.
#include <functional>
#include <ipybox/kernel_backend.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "link.hpp"

namespace ipybox::forked {

// As Kernel::next() promises.
awaitable<std::optional<KernelOutput>> next_output(LinkPtr link, Clock::time_point deadline);

class ForkKernel final : public Kernel {
public:
    // owner: that of the specification. leaving: called by shutdown(), before it waits for
    // anything.
    ForkKernel(LinkPtr link, std::weak_ptr<void> owner, std::function<void()> leaving)
        : link_(std::move(link)), owner_(std::move(owner)), leaving_(std::move(leaving)) {}
    ~ForkKernel() override { link_->close(); }
    ForkKernel(const ForkKernel&) = delete;
    ForkKernel& operator=(const ForkKernel&) = delete;

    awaitable<void> execute(ExecuteRequest request) override;
    awaitable<std::optional<KernelOutput>> next(Clock::time_point deadline) override {
        return next_output(link_, deadline);
    }
    awaitable<void> interrupt() override;
    awaitable<void> shutdown() override;
    bool alive() const noexcept override {
        return !link_->closed && !link_->failure && !link_->look_for_exit();
    }
    std::shared_ptr<SandboxedProcess> process() const override { return link_->process; }
    void answer_input(std::optional<std::string> text) override;
    // It is about to be used: what has rested for long gets up meanwhile.
    void wake() noexcept;

private:
    LinkPtr link_;
    std::weak_ptr<void> owner_;  // which holds this
    std::function<void()> leaving_;
};

}  // namespace ipybox::forked
