// What native.py calls of a server, the same for all devices. Included where `server` is.

extern "C" {

void arena_expect(std::int64_t address, const Request* requests, std::int64_t count) {
    server.expect(reinterpret_cast<const char*>(address), requests, count);
}

// Free an arena, now or when nothing lies there any more.
void arena_free(std::int64_t address) { server.drop(reinterpret_cast<const char*>(address)); }

std::int64_t arena_position() { return server.position(); }

void arena_counts(Counts* into) { *into = server.counts(); }

std::int64_t arena_events() { return server.number_of_events(); }

// How many nanoseconds measuring nothing takes.
double arena_clock_ns(std::int64_t times) {
    std::int64_t sum = 0;
    for (std::int64_t k = 0; k < times; ++k) {
        sum += Server::since(Server::Clock::now());
    }
    return static_cast<double>(sum) / static_cast<double>(times);
}

std::int64_t arena_take_events(Event* into, std::int64_t room) { return server.take_events(into, room); }

} // extern "C"
