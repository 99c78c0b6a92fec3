"""Emulators of Azure for one machine: tables (Azurite), Service Bus and App Configuration. They are not
Azure."""
