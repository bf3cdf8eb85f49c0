-- Only the roles named here may call functions.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ingot FROM PUBLIC, ingot_server, ingot_worker, ingot_app;
REVOKE ALL ON ingot.job_rows, ingot.attempts, ingot.definitions, ingot.pauses FROM PUBLIC, ingot_server, ingot_worker, ingot_app;
GRANT SELECT ON ingot.job_rows, ingot.attempts TO ingot_server;
GRANT EXECUTE ON FUNCTION
    ingot.append_logs,
    ingot.enqueue, ingot.claim, ingot.lane_heads, ingot.renew, ingot.settle, ingot.cancel, ingot.retry, ingot.change,
    ingot.promote, ingot.expired_leases, ingot.sweep, ingot.poll, ingot.next_due, ingot.next_expiry, ingot.fold_counts,
    ingot.notify_ready, ingot.clock, ingot.server_started_at, ingot.event_position, ingot.position_offset, ingot.at_home,
    ingot.resolve_orders, ingot.find_attempts, ingot.newest_ended_job, ingot.find_tenants, ingot.list_tenants, ingot.find_definition,
    ingot.collect_jobs, ingot.retention_cutoffs, ingot.queue_depths,
    ingot.create_tenant, ingot.change_tenant, ingot.put_record, ingot.delete_record, ingot.get_sealed,
    ingot.expect_capacity, ingot.release_dependents, ingot.ended_parents, ingot.close_batches, ingot.fold_batches,
    ingot.leases_of_worker, ingot.create_token, ingot.revoke_token, ingot.find_token, ingot.list_tokens, ingot.create_worker_credential,
    ingot.change_worker_credential, ingot.find_worker_credential, ingot.is_worker_name, ingot.list_worker_credentials, ingot.record_use,
    ingot.batch_totals, ingot.record_askers, ingot.find_limits, ingot.publish, ingot.delete_old_events,
    ingot.register_worker, ingot.record_heartbeat, ingot.drain_worker, ingot.remove_worker, ingot.maintain_workers, ingot.find_worker,
    ingot.list_workers, ingot.count_workers, ingot.workers_of_type, ingot.list_draining, ingot.check_leases, ingot.list_audit_entries,
    ingot.begin_login, ingot.consume_login, ingot.sign_in, ingot.reject_sign_in, ingot.end_session, ingot.find_session, ingot.list_sessions,
    ingot.enable_user, ingot.find_user, ingot.list_users, ingot.put_member, ingot.remove_member, ingot.find_member,
    ingot.list_members, ingot.list_user_tokens, ingot.change_member, ingot.accept_invitation, ingot.decline_invitation,
    ingot.list_invitations, ingot.leave_tenant, ingot.choose_tenant,
    ingot.remove_tenant, ingot.clear_tenants, ingot.is_locked_by_app,
    ingot.begin_upload, ingot.take_over_upload, ingot.update_upload, ingot.finish_uploads, ingot.end_upload, ingot.sweep_uploads,
    ingot.put_blobs, ingot.delete_keys, ingot.purge_keys, ingot.open_key, ingot.open_blob,
    ingot.list_verifying, ingot.get_usage, ingot.collect_blob, ingot.list_collectable, ingot.list_trash, ingot.delete_trash,
    ingot.record_scrub, ingot.list_to_scrub, ingot.blob_metrics, ingot.open_file, ingot.register_object_store, ingot.known_storage_keys,
    ingot.check_secret_key, ingot.object_store_conflict, ingot.register_server, ingot.renew_server, ingot.unregister_server,
    ingot.forget_trash, ingot.record_scrub_of, ingot.find_rules,
    ingot.end_long_transactions, ingot.describe_transactions, ingot.expect_types, ingot.free_types,
    ingot.collect_blob_of, ingot.list_tombstoned, ingot.record_tenant_scrub
TO ingot_server;
GRANT EXECUTE ON FUNCTION
    ingot.worker_claim, ingot.worker_renew, ingot.worker_settle, ingot.worker_hello, ingot.worker_register, ingot.worker_hear,
    ingot.worker_look, ingot.worker_append_logs, ingot.worker_ready, ingot.worker_leave
TO ingot_worker;
GRANT EXECUTE ON FUNCTION ingot.enqueue_jobs, ingot.enqueue_json, ingot.publish_event, ingot.publish_json TO ingot_app;
