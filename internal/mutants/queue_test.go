package mutants

// queueMutants are defects of queues.
var queueMutants = []mutant{
	{"an ack does not check the claim", "queue_ack.go",
		"backend.Delete(cl.mark, backend.AnyVersion),\n", "backend.Check(cl.e.path(), backend.AnyVersion),\n",
		"TestAnAckAfterExpiryDoesNotTouchTheNextClaim"},
	{"a put into a bucket that may be closed", "queue_put.go",
		"ops = append(ops, backend.Check(target, 0))", "ops = append(ops, backend.Check(target, backend.AnyVersion))",
		"TestAPutNeverLandsInAClosedBucket"},
	{"a waiter watches only the one before it", "queue_wait.go",
		"range all[i-frontWaiters : i]", "range all[i-1 : i]",
		"TestAnIdleConsumerThatDoesNotActDelaysNothing"},
	{"one waiter alone watches the items", "queue_wait.go",
		"const frontWaiters = 4", "const frontWaiters = 1",
		"TestAnIdleConsumerThatDoesNotActDelaysNothing"},
}
