#pragma once
// Times as people and programs write them.
#include <chrono>
#include <ipybox/async.hpp>

namespace ipybox::app {

inline Duration seconds(double number) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(number));
}

}  // namespace ipybox::app
