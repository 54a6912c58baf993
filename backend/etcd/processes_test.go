//go:build linux

package etcd_test

import (
	"testing"

	"github.com/go-coord/coord/internal/coordtest"
)

// The scenarios of internal/faulttest in which processes with a lock are killed, paused and cut
// off, on three members that are killed too. With COORD_LONG=1 also those of waiters, of candidates
// of an election, and of producers and consumers of a queue.
func TestProcessesAreKilledPausedAndCutOffOnEtcd(t *testing.T) {
	t.Parallel()
	run := "^TestTwoProcesses$"
	skip := "TestTwoProcesses/(pauses|margins)" // they are about ZooKeeper's ticks
	const waiters = "|TestTwoProcesses/.*/a_waiter"
	wanted := []string{
		"TestTwoProcesses/processes/a_killed_holder_is_succeeded_within_the_session_timeout",
		"TestTwoProcesses/processes/a_holder_without_network_is_notified_before_the_next_grant",
		"TestTwoProcesses/processes/a_paused_holder_sees_its_loss_at_its_first_check",
		"TestTwoProcesses/servers/no_client_loses_the_lock_when_the_leader_is_killed",
		"TestTwoProcesses/servers/no_client_loses_the_lock_when_a_follower_is_killed",
	}
	if !coordtest.Long() {
		skip += waiters
	} else {
		run = "^(TestTwoProcesses|TestLeadersAreReplaced|TestItemsPassAQueueBetweenProcesses)$"
		wanted = append(wanted, "TestLeadersAreReplaced",
			"TestTwoProcesses/processes/a_waiter_that_loses_its_session_goes_on_and_is_granted",
			"TestTwoProcesses/servers/a_waiter_whose_server_is_killed_keeps_its_place",
			"TestItemsPassAQueueBetweenProcesses/without_a_fault_no_item_is_delivered_twice",
			"TestItemsPassAQueueBetweenProcesses/one_consumer_gets_all_items_in_order",
			"TestItemsPassAQueueBetweenProcesses/whatever_dies,_no_item_is_lost,_and_none_is_delivered_after_its_ack")
	}
	onMembers(t, run, skip, wanted...)
}

// Programs as users write them: a leader that is killed in the middle of a job, a queue service
// that is stopped by SIGTERM, runs of a schedule whose processes are killed and paused, and the shards of a paused process.
func TestProgramsOnEtcd(t *testing.T) {
	t.Parallel()
	onMembers(t, "^TestPrograms$", "^$",
		"TestPrograms/a_leader_that_is_killed_in_the_middle_of_a_job_is_followed_by_another",
		"TestPrograms/a_service_that_is_stopped_gives_its_items_back_without_an_attempt",
		"TestPrograms/a_run_of_a_schedule_whose_process_is_killed_is_repeated_by_another",
		"TestPrograms/a_run_of_a_schedule_whose_process_is_paused_is_abandoned",
		"TestPrograms/the_shards_of_a_paused_process_move_and_come_back")
}

// onMembers runs tests of internal/faulttest on three members, of which some must pass.
func onMembers(t *testing.T, run, skip string, wanted ...string) {
	t.Helper()
	etcdModule.Pass(t, "internal/faulttest", []string{"COORD_LONG="}, wanted, "-timeout", "30m", "-run", run, "-skip", skip)
}

// Copies of a tree that changes while members are killed and sessions end.
func TestACacheIsExactOnEtcd(t *testing.T) {
	t.Parallel()
	coordtest.OnlyLong(t)
	onMembers(t, "^TestACacheIsExactAfterChurnAndKills$", "^$", "TestACacheIsExactAfterChurnAndKills")
}

// Transactions whose coordinator or a site fails at one of its requests. The record of the members
// shows neither what a commit checks nor when it was applied.
func TestTransactionsOfProcessesOnEtcd(t *testing.T) {
	t.Parallel()
	coordtest.OnlyLong(t)
	name := "TestATransactionOfProcessesSurvivesAFaultAtEveryRequest"
	onMembers(t, "^"+name+"$", "^$", name)
}

// Producers and consumers of a queue and a delay queue with every fault at once. The record of the
// members shows what became of each item.
func TestAFleetOnEtcd(t *testing.T) {
	t.Parallel()
	coordtest.OnlyLong(t)
	name := "TestAFleetPassesItemsThroughQueuesUnderFaults"
	onMembers(t, "^"+name+"$", "^$", name)
}

// The forms of internal/simulation that run on a real server.
func TestCrowdsOnEtcd(t *testing.T) {
	t.Parallel()
	coordtest.OnlyLong(t)
	etcdModule.Crowds(t, "COORD_ETCD_SERVER="+shared.get(t))
}
