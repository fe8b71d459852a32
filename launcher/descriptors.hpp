#pragma once
// Descriptors that the launcher's processes hand to each other and to the host.

namespace ipybox::launcher {

// More than Linux takes in one message (SCM_MAX_FD).
constexpr int most_sent = 256;

// A packet with descriptors, or without any. False with errno.
bool send_packet(int socket, const void* data, unsigned long size, const int* files, int count);
// A byte with descriptors. False with errno.
bool send_descriptors(int socket, char byte, const int* files, int count);

// What came with a packet.
struct Received {
    long bytes = -1;   // as recvmsg() says: 0 at the end, -1 with errno
    int count = 0;     // of descriptors
    bool cut = false;  // more came than were wanted or there was room for; those are closed
};
// flags: of recvmsg(). files: room for `most`, at most most_sent; close-on-exec. What came without
// descriptors has none.
Received receive_packet(int socket, void* data, unsigned long size, int flags, int* files,
                        int most);
// The same with a byte, whatever it is.
Received receive_descriptors(int socket, int flags, int* files, int most);

// Closes all from `first` on, but for these, by rising number. False with errno.
bool close_all_but(int first, const int* kept, int count);
// The same for two, in any order, which may be the same.
void close_all_but(int first, int one, int other);

}  // namespace ipybox::launcher
