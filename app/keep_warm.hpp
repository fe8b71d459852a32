#pragma once
// For programs whose sessions come and go.
#include <ipybox/executor/code_executor.hpp>

namespace ipybox::app {

// The process that kernels are forked from stays a minute for the next session, unless the options
// say how long.
inline void keep_warm(CodeExecutorOptions& options) {
    if (options.kernel == "auto" || options.kernel == "fork")
        options.kernel_options.emplace("keep_warm", 60);
}

}  // namespace ipybox::app
