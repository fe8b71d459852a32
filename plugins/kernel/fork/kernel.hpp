#pragma once
// The kernel that the host talks to.
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
    explicit ForkKernel(LinkPtr link) : link_(std::move(link)) {}
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

private:
    LinkPtr link_;
};

}  // namespace ipybox::forked
