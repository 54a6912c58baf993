// Package coordtest is for tests of code that uses coord: it starts services, gives each client a
// connection with faults of its own, and runs one test function in memory and on real servers.
//
//	func TestMyService(t *testing.T) {
//		coordtest.Each(t, nil, func(t *testing.T, s *coordtest.Service) {
//			a, b := s.Client("a", nil), s.Client("b", nil) // closed by the test
//			...
//			s.Link("a").Blackhole(true)                    // nothing of a gets through
//			...
//		})
//	}
//
// [Each] runs the function twice: in memory, inside a testing/synctest bubble, where minutes pass in
// no time; and on a real ZooKeeper server that it starts. [Memory] runs it in memory only.
// [StartZooKeeper] starts one server or three for a test that kills and pauses them. Packages
// backend/etcd/etcdtest and backend/postgres/pgtest, of the modules backend/etcd and
// backend/postgres, have an Each that adds an etcd or a PostgreSQL server.
// [New] makes a Service of anything else.
//
// # Names
//
// A [Service] is one fresh tree of nodes. A [Link] is the connection of one client, or of several,
// to it, by name: the same name is the same link, and the faults of one link do not affect the
// others. Service.Client opens a client over the link of its name. Code under test that opens
// clients of its own gets Service.Link as its backend.Backend, and Service.Root as the Namespace.
//
// # Faults of a link
//
// They mean the same on each service:
//
//	fault           what happens                                what the client notices
//	Cut             the connection breaks, once                 calls under way are uncertain (ErrUncertain, which
//	                                                            most recipes resolve); it connects again at once;
//	                                                            its session and its holds stay
//	Refuse(true)    the connection breaks, and new ones are     at once: suspended. After the session timeout, less
//	                refused until Refuse(false)                 LossMargin, its holds are lost
//	Blackhole(true) bytes vanish in both directions until       nothing, until an answer is overdue; then the same.
//	                Blackhole(false); no connection is reset    In memory it is suspended at once
//	Delay(d)        each request and each reply takes d longer  latency. In memory watch events are not delayed
//	DropRequest     the n-th commit that names a path is lost   the commit is uncertain, and is not applied; the
//	                before it reaches the service               connection breaks, as by Cut
//	DropReply       the n-th commit that names a path is        the commit is uncertain, and is applied (or was
//	                answered, and the answer is lost            refused); the connection breaks, as by Cut
//	Expire          the service ends the sessions of the link   its holds are lost as soon as it has contact, or when
//	                now                                         its lease passes
//
// When Expire returns, the service has ended the sessions and deleted their ephemeral nodes, so
// that the next candidate is granted, whether the client knows of it or not. A server of several
// that lags behind can show the nodes to a reader for a moment longer.
//
// A fault that was armed by DropRequest or DropReply and has not struck at the end of the test
// fails the test, since the test has not tested it then. Fault.Cancel takes it back.
//
// All faults of links end with the test before its clients are closed, so closing them takes no
// time.
//
// # Time
//
// In memory everything runs in the fake time of the bubble: sleeps, timeouts, and the expiry of
// sessions take no time, and happen in the order of their deadlines. In a bubble nothing may
// block on what is outside of it: no network, no files that block, no goroutines that the test has
// started before. See testing/synctest. On real servers time is real: a test that waits for the loss of a
// session takes as long as the session timeout, 10 s unless Options say otherwise. Link.Expire
// is faster. Service.Fake tells where the test is, and Service.Eventually waits on both.
//
// # Proxies
//
// [NewProxy] stands between a client and a ZooKeeper server, knows the frames of the protocol, and so
// loses or holds a single request or reply on the wire. [NewRawProxy] stands between any two ends,
// for TLS and for etcd. Both can, besides the above, hold everything: Hold(true) loses nothing, and
// everything continues, in order, after Hold(false). In short: Cut tells both ends, Blackhole tells
// none and loses bytes, Hold tells none and loses nothing.
//
// # What a test needs
//
// In memory: nothing. For ZooKeeper: Java, found by JAVA_HOME or PATH, and its jars, from the first of
// these:
//
//   - ZOOKEEPER_CLASSPATH, a class path as Java takes it;
//   - ZOOKEEPER_HOME, the folder of an unpacked release of Apache ZooKeeper, with its jars in lib
//     (with Homebrew: $(brew --prefix zookeeper)/libexec);
//   - /usr/share/java/zookeeper.jar and its companions, which the packages zookeeper and
//     libzookeeper-java of Debian and Ubuntu install.
//
// Where these are missing, a test that needs them is skipped, and its message says what to install.
// With COORD_REQUIRE_ZK=1 in the environment it fails instead; set this where the tests must not
// pass by skipping, in a CI for example. With go test -short Each runs in memory only.
//
// On Linux the kernel ends the servers however the test binary ends, also by a panic or a
// timeout. Elsewhere they end with the test, and after a panic outside of the test's goroutine,
// or a timeout of the test binary, they stay. Pause and Resume need a Unix system. The package is
// tested on Linux with ZooKeeper 3.8; on macOS and Windows it compiles.
package coordtest
