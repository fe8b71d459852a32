// g++ 12's libstdc++ has a new version of this one symbol, and ipybox needs nothing else of that
// version. With a definition of our own the program runs where libstdc++ is that of g++ 11.
#include <condition_variable>

void std::condition_variable::wait(std::unique_lock<std::mutex>& lock) noexcept {
    ::pthread_cond_wait(native_handle(), lock.mutex()->native_handle());
}
